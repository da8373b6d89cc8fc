"""One training row of each task as its official file writes it, and the row it becomes."""

import json

from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.task_spec import Row

WIC = {
    "word": "run",
    "sentence1": "He ran home.",
    "sentence2": "A run of luck.",
    "idx": 0,
    "label": True,
    "start1": 3,
    "end1": 6,
    "start2": 2,
    "end2": 5,
    "version": 1.1,
}
COPA = {
    "premise": "The man fell.",
    "choice1": "He cried.",
    "choice2": "It rained.",
    "question": "effect",
    "label": 1,
    "idx": 0,
}
WSC = {
    "text": "Mark told Pete that he lied.",
    "target": {"span1_index": 0, "span1_text": "Mark", "span2_index": 4, "span2_text": "he"},
    "idx": 0,
    "label": False,
}
BOOLQ = {"question": "is it so", "passage": "It is -- so.", "idx": 0, "label": True}
CB = {"premise": "He said so.", "hypothesis": "it is so", "label": "neutral", "idx": 0}
MULTIRC = {"idx": 3, "version": 1.1, "passage": {"text": "A text.", "questions": [
    {"question": "Who?", "idx": 7, "answers": [{"text": "He", "idx": 1, "label": 1}, {"text": "She", "idx": 2, "label": 0}]},
]}}  # fmt: skip
RECORD = {
    "idx": 2,
    "source": "Daily mail",
    "passage": {
        "text": "Ann Lee met Bo.\nLee left.\n@highlight\nBo stayed",
        "entities": [
            {"start": 0, "end": 6},
            {"start": 12, "end": 13},
            {"start": 16, "end": 18},
            {"start": 37, "end": 38},
        ],
    },
    "qas": [
        {
            "idx": 5,
            "query": "It was @placeholder who left.",
            "answers": [
                {"start": 0, "end": 6, "text": "Ann Lee"},
                {"start": 16, "end": 18, "text": "Lee"},
            ],
        }
    ],
}
RTE = {"premise": "He said so.", "hypothesis": "He spoke.", "label": "not_entailment", "idx": 0}
SQUAD = {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": "The cat sat.", "qas": [
    {"id": "q1", "question": "Who sat?", "answers": [{"text": "cat", "answer_start": 4}, {"text": "The cat", "answer_start": 0}]},
]}]}]}  # fmt: skip
SWAG = ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n0,v,1,x,He stops.,He,gold,"goes, then sits",runs,"says ""no""",is,2\n'
JSONL = {
    "wic": WIC,
    "copa": COPA,
    "wsc": WSC,
    "boolq": BOOLQ,
    "cb": CB,
    "multirc": MULTIRC,
    "record": RECORD,
    "superglue-rte": RTE,
}


def content(name):
    return SWAG if name == "swag" else json.dumps(SQUAD if name == "squad" else JSONL[name]) + "\n"


def read_train_rows(tmp_path, name, text, required=()):
    """The train rows of a task whose train file holds `text`."""
    task = task_spec.load(name).model_copy(update={"rows": {}})
    path = tmp_path / task.local.folder / task.local.files["train"][0]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return task_sources.load(task, data_dir=tmp_path, required=required).splits["train"]


ROWS = {
    "wic": [Row("0", (("He ran home.", "A run of luck."),), 1, word_spans=((3, 6), (2, 5)))],
    "copa": [Row("0", (("The man fell so he cried.",), ("The man fell so it rained.",)), 1)],
    "wsc": [Row("0", (("Mark told Pete that * he * lied.", "Mark"),), 0)],
    "boolq": [Row("0", (("It is -- so.", "is it so"),), 1)],
    "cb": [Row("0", (("He said so.", "it is so"),), 2)],
    "multirc": [
        Row("3-7-1", (("A text.", "Who? He"),), 1, group="3-7"),
        Row("3-7-2", (("A text.", "Who? She"),), 0, group="3-7"),
    ],
    "record": [
        Row(
            f"5-{entity}",
            (("Ann Lee met Bo.\nLee left.\n@highlight\nBo stayed", f"It was {entity} who left."),),
            label,
            answers=(("Ann Lee", -1), ("Lee", -1)),
            group="5",
            candidate=entity,
        )
        for entity, label in (("Ann Lee", 1), ("Bo", 0), ("Lee", 1))  # Bo is mentioned twice
    ],
    "squad": [
        Row("q1", (("Who sat?", "The cat sat."),), None, answers=(("cat", 4), ("The cat", 0)))
    ],
    "swag": [
        Row(
            "0",
            (
                ("He stops.", "He goes, then sits"),
                ("He stops.", "He runs"),
                ("He stops.", 'He says "no"'),
                ("He stops.", "He is"),
            ),
            2,
        )
    ],
}
