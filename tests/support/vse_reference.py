"""VSE-infinity in torch, from the formulas of the paper (arXiv 2011.04305) and with the release's names of tensors."""

import argparse
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
nn = torch.nn


class Gpo(nn.Module):
    """Section 3.2, one set at a time and without padding."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(32, 32, 1, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(32, 1, bias=False)

    def weights(self, count: int) -> torch.Tensor:
        codes = torch.zeros(count, 32)
        for position in range(count):
            for pair in range(16):
                angle = torch.tensor(position / 10000 ** (2 * pair / 32))
                codes[position, 2 * pair], codes[position, 2 * pair + 1] = torch.sin(angle), torch.cos(angle)
        states = self.gru(codes[None])[0][0]
        return torch.softmax(self.linear((states[:, :32] + states[:, 32:]) / 2)[:, 0] / 0.1, 0)

    def forward(self, elements: torch.Tensor) -> torch.Tensor:
        ranked = elements.sort(0, descending=True).values
        return (self.weights(len(elements))[:, None] * ranked).sum(0)


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, channels: int, inner: int, groups: int, stride: int, caffe: bool, first: bool):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 1, stride if caffe else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, 1 if caffe else stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, 4 * channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        convolution = nn.Conv2d(inputs, 4 * channels, 1, stride, bias=False)
        self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(4 * channels)) if first else None

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn3(self.conv3(self.bn2(self.conv2(y)).relu()))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet(nn.Module):
    def __init__(self, width: int, layers: tuple[int, ...], groups: int, per_group: int):
        super().__init__()
        caffe = groups == 1
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        pool = {"padding": 0, "ceil_mode": True} if caffe else {"padding": 1}
        self.maxpool = nn.MaxPool2d(3, 2, **pool)
        inputs = width
        for number, count in enumerate(layers):
            channels = width << number
            inner = channels * per_group // width * groups
            blocks = []
            for place in range(count):
                stride = 2 if number and not place else 1
                blocks.append(Bottleneck(inputs, channels, inner, groups, stride, caffe, not place))
                inputs = 4 * channels
            setattr(self, f"layer{number + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, 5)

    def forward(self, x):
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


class Backbone(nn.Module):
    """As in the release, the same tensors stand under several names."""

    def __init__(self, resnet: ResNet):
        super().__init__()
        self.resnet = resnet
        self.base = nn.Sequential(
            resnet.conv1, resnet.bn1, nn.ReLU(), resnet.maxpool, resnet.layer1, resnet.layer2, resnet.layer3
        )
        self.top = nn.Sequential(resnet.layer4)


class Mlp(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(hidden), nn.BatchNorm1d(outputs)])

    def forward(self, x):
        return self.layers[1](self.bns[0](self.layers[0](x)).relu())


class Aggregator(nn.Module):
    """From the features of one image to its vector; regions go through an MLP beside the map."""

    def __init__(self, inputs: int, dim: int, regions: bool):
        super().__init__()
        self.fc, self.gpool = nn.Linear(inputs, dim), Gpo()
        if regions:
            self.mlp = Mlp(inputs, dim // 2, dim)

    def forward(self, features):
        x = self.fc(features)
        x = x + self.mlp(features) if hasattr(self, "mlp") else x
        return nn.functional.normalize(self.gpool(x), dim=0)


class GridEncoder(nn.Module):
    def __init__(self, resnet: ResNet, dim: int):
        super().__init__()
        self.backbone, self.image_encoder = Backbone(resnet), Aggregator(resnet.fc.in_features, dim, regions=False)

    def forward(self, pixels):
        maps = self.backbone.resnet(pixels)
        return torch.stack([self.image_encoder(each.flatten(1).T) for each in maps])


class TextEncoder(nn.Module):
    def __init__(self, dim: int, **sizes):
        super().__init__()
        self.bert = transformers.BertModel(transformers.BertConfig(**sizes))
        self.linear, self.gpool = nn.Linear(sizes["hidden_size"], dim), Gpo()

    def forward(self, texts: list[list[int]]):
        """One text at a time: no padding."""
        vectors = [self.gpool(self.linear(self.bert(torch.tensor([ids]))[0][0])) for ids in texts]
        return nn.functional.normalize(torch.stack(vectors), dim=-1)


def perturb(module: nn.Module, seed: int = 0) -> nn.Module:
    """In evaluation mode, with no bias or mean zero, no scale or variance one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator)
                if name.endswith("running_var"):
                    tensor.copy_(1 + 0.2 * noise.abs())
                else:
                    tensor.add_((0.2 if tensor.ndim == 1 else 0.02) * noise)
    return module.eval()


def save(path: Path, image: nn.Module, text: nn.Module, *, parallel: bool = False, **options) -> Path:
    """As the release's training script saves, a wrapped image encoder included."""
    states = [nn.DataParallel(image).state_dict() if parallel else image.state_dict(), text.state_dict()]
    record = {"epoch": 25, "model": states, "best_rsum": 500.25, "opt": argparse.Namespace(**options), "Eiters": 7}
    torch.save(record, path)
    return path
