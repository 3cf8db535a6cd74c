"""Compare a model's logits of the options of questions with the answers: multiple choice of vision-language models.

A file (.jsonl, .json, .parquet, .csv or .tsv) has a record for each question; options and logits are lists:

    {"image": "7.jpg", "question": "Which animal is it?", "options": ["a cat", "a dog", "a hen"],
     "logits": [2.5, 0.5, -1.0], "answer": "a cat"}

`logits` are scores before the softmax, or log-probabilities, one for each option. `answer` is the text of an option, or
its position from 0 as a number; where options are numbers themselves, a number is the option. A question is identified
by its `id`, or by image and question if it has none.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.choices.records import Record, read_records
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.subset import Subset, read_subset
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.benchmarks.tasks.options import OptionTask
from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.class_logits import Logits, corrupted_tasks
from rococo_jax.evaluation.models.probabilities import check_logits
from rococo_jax.evaluation.runner import evaluate_model
from rococo_jax.evaluation.sections import Evaluated
from rococo_jax.storage import hash_json


@dataclasses.dataclass(frozen=True)
class Question:
    """Question about an image, without the answer of a model.

    Attributes:
        id, image, text: the question; an image without a name has the question's id.
        options: sorted texts.
        answer: the correct option.
    """

    id: str
    image: str
    text: str
    options: tuple[str, ...]
    answer: str


# The logits of each question's options, in the order of `Question.options`.
Answers = Mapping[Question, Float[np.ndarray, " _"]]


def score_questions(
    logits: str,
    *,
    task: str = "questions",
    name: str | None = None,
    corrupted: Mapping[str, str] | None = None,
    only: str | None = None,
) -> Evaluated:
    """Evaluate a model's logits of the options of questions.

    Args:
        logits: file of the questions with the logits of their options; see the module.
        task: name of the task in the results.
        name: name of the model; the file's stem by default.
        corrupted: variant (`fog_3`) -> file of the same questions with the logits for corrupted images.
        only: list of the images or ids of the questions to evaluate; see `benchmarks.subset`.

    Raises:
        InputError: a file cannot be used, a question is repeated, a number of logits is not that of the options, an
            answer is not among them, a logit is no number, the numbers are probabilities, a file of corrupted images
            has other questions, or a listed image or id does not exist.
    """
    clean = read_answers(Path(logits))
    notes = _check_logits(clean, logits)
    # The order of the questions in the file does not matter.
    questions = sorted(clean, key=lambda each: (each.image, each.id))
    data = {}
    if only is not None:
        questions, data = _select(questions, read_subset(only), logits)
    variants = {CLEAN: [clean[each] for each in questions]}
    for variant, path in (corrupted or {}).items():
        answers = read_answers(Path(path))
        notes += _check_logits(answers, path)
        _check_same_questions(path, answers, logits, clean)
        variants[variant] = [answers[each] for each in questions]
    images = sorted({each.image for each in questions})
    rows = {image: row for row, image in enumerate(images)}
    multiple_choice = OptionTask(
        task,
        CLEAN,
        ids=[each.id for each in questions],
        questions=[each.text for each in questions],
        options=[each.options for each in questions],
        label=np.array([each.options.index(each.answer) for each in questions]),
        image_names=np.array([rows[each.image] for each in questions]),
        names=[each.image for each in questions],
    )
    conditions = {"questions": hash_json([dataclasses.astuple(each) for each in questions])}
    benchmark = Benchmark("questions", tuple(images), (), {}, (multiple_choice,), data=data, conditions=conditions)
    described = {variant: hash_json([each.tolist() for each in rows]) for variant, rows in variants.items()}

    def outcomes_of(task: OptionTask) -> list[Outcome]:
        return [each.score_logits(variants[variant]) for variant, each in corrupted_tasks(task, [*variants][1:])]

    model = Logits(name or Path(logits).stem, described, notes, outcomes_of)
    return evaluate_model(model, [benchmark], Settings(), EmbeddingCache(None))


def _select(questions: Sequence[Question], subset: Subset, source: str) -> tuple[list[Question], dict[str, Any]]:
    """Return the questions whose image or id is listed, and the entry on the list for the results."""
    names = {name for each in questions for name in (each.image, each.id)}
    subset.refuse_unknown(names, f"images or ids of {source}")
    selected = [each for each in questions if each.image in subset or each.id in subset]
    return selected, subset.describe(len(selected), len(questions), "questions")


def read_answers(path: Path) -> Answers:
    """Read a file of questions with the logits of their options. Raises InputError: as `score_questions`."""
    answers: dict[Question, np.ndarray] = {}
    ids: set[str] = set()
    is_position: bool | None = None
    for record in read_records(path)[1]:
        question, logits, answer_is_position = _question(record)
        if None not in (is_position, answer_is_position) and answer_is_position is not is_position:
            problem = "numbers that are positions of options in some questions, and options in others"
            raise record.error("answer", problem, "the text of an option in every question")
        is_position = answer_is_position if is_position is None else is_position
        if question.id in ids:
            raise record.error("question", f"{question.id!r} more than once", "every question once, or with its own id")
        ids.add(question.id)
        answers[question] = logits
    return answers


def _check_logits(answers: Answers, path: str) -> list[str]:
    """Check the logits of a file and return notes on them (`probabilities.check_logits`)."""
    by_size: dict[int, list[np.ndarray]] = {}
    for logits in answers.values():
        by_size.setdefault(len(logits), []).append(logits)
    return check_logits([*map(np.stack, by_size.values())], path)


def _question(record: Record) -> tuple[Question, np.ndarray, bool | None]:
    """Return the question of a record, its logits in the order of the sorted options, and how its answer was read.

    The last value is whether a number was read as a position, or None if both readings give the same option.
    """
    options, text = record.texts("options"), record.text("question")
    if len(set(options)) < max(2, len(options)):
        raise record.error("options", str(list(options))[:80], "at least 2, each once")
    logits = np.array(record.numbers("logits"))
    if len(logits) != len(options):
        raise record.error("logits", f"{len(logits)} numbers", f"{len(options)}, one for each option")
    answer, is_position = _answer(record, options)
    image, own_id = (record.label(name) if record.value.get(name) not in (None, "") else "" for name in ("image", "id"))
    if not image and not own_id:
        raise record.error("image", "nothing", "an image or an id for each question")
    order = sorted(range(len(options)), key=lambda place: options[place])
    sorted_options = tuple(options[place] for place in order)
    question_id = own_id or f"{image}: {text}"
    return Question(question_id, image or question_id, text, sorted_options, answer), logits[order], is_position


def _answer(record: Record, options: Sequence[str]) -> tuple[str, bool | None]:
    """Return the correct option, and how a number was read (`_question`).

    Raises InputError: it is no option and no position, or a position of options that are numbers themselves.
    """
    answer = record.get("answer", "the text of an option, or its position from 0")
    if isinstance(answer, str) and answer in options:
        return answer, None
    number = answer if type(answer) is int else None
    by_position = options[number] if number is not None and 0 <= number < len(options) else None
    values = [_number_of(option) for option in options]
    if number is not None and values.count(number) == 1:
        option = options[values.index(number)]
        return option, None if option == by_position else False
    are_numbers = any(value is not None for value in values)
    if by_position is not None and not are_numbers:
        return by_position, True
    expected = f"one of {list(options)}"[:120]
    expected += "" if are_numbers else f", or a position from 0 to {len(options) - 1} as a number"
    raise record.error("answer", repr(answer)[:80], expected)


def _number_of(option: str) -> float | None:
    """Return the number that an option is, or None if it is another text."""
    try:
        return float(option)
    except ValueError:
        return None


def _check_same_questions(path: str, answers: Answers, clean_path: str, clean: Answers) -> None:
    """Raise InputError if two files have other questions, options or answers."""
    ids = {each.id: each for each in answers}
    for question in clean:
        other = ids.get(question.id)
        if other is None:
            raise InputError(path, "questions", f"no {question.id!r}", f"all {len(clean)} of {clean_path}")
        differing = [part for part, value in vars(question).items() if getattr(other, part) != value]
        if differing:
            problem = f"{getattr(other, differing[0])!r}"[:80]
            expected = f"{getattr(question, differing[0])!r}"[:80] + f", as in {clean_path}"
            raise InputError(path, f"{differing[0]} of {question.id!r}", problem, expected)
    if extra := ids.keys() - {each.id for each in clean}:
        raise InputError(path, "questions", f"{min(extra)!r} as well", f"only the {len(clean)} of {clean_path}")
