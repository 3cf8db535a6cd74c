"""CIFAR-10: ten classes of small photographs, one folder each."""

from rococo_jax.benchmarks.classes.labelled import class_benchmark, read_class_folders

INFO = class_benchmark(
    read_class_folders,
    name="cifar10",
    question="Which of ten classes does a photograph of 32 pixels show?",
    paper="Learning Multiple Layers of Features from Tiny Images, Krizhevsky 2009",
    licence="none given; for research",
    size="10,000 test images of 10 classes",
    folders={"images": "cifar10/images"},
    source="the data set's public page, unpacked into a folder for each class",
)
