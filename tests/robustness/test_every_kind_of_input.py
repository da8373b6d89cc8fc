"""Small inputs of every kind, after public reports of faults: each is read as its author means it, or refused in one line."""

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from hifi_cli.errors import HifiError
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.own_data import from_data, register

ANIMALS = ["cow", "duck", "dog", "cat", "man", "girl"]
VERBS = ["painted", "hated", "liked", "sold", "cleaned"]


def text_of(number: int) -> str:
    """A sentence that no other number has."""
    return f"the {ANIMALS[number % 6]} {VERBS[number % 5]} house {number}"


def table(header: str, *cells: str, rows: int = 30, separator: str = ",", end: str = "\n") -> str:
    """A table of a text and, in turn, one of the cells in each row."""
    lines = [f"{text_of(row)}{separator}{cells[row % len(cells)]}" for row in range(rows)]
    return end.join([header, *lines, ""])


def json_lines(key: str, *values: object, rows: int = 30) -> str:
    """JSON lines of a text and, in turn, one of the values in each row."""
    records = [{"text": text_of(row), key: values[row % len(values)]} for row in range(rows)]
    return "".join(json.dumps(record) + "\n" for record in records)


def sentences(*lines: str, times: int = 20, between: str = "\n\n") -> str:
    """A CoNLL file that repeats a sentence, whose first word tells the copies apart."""
    copies = ["\n".join(lines).replace("NUMBER", f"n{number}") for number in range(times)]
    return between.join(copies) + "\n"


def words(tokens: list[str], tags: list[object], times: int = 20) -> str:
    """JSON lines of a tagged sentence, whose first word tells the copies apart."""
    records = [
        {"tokens": [f"n{number}", *tokens], "ner_tags": [tags[-1], *tags]}
        for number in range(times)
    ]
    return "".join(json.dumps(record) + "\n" for record in records)


@dataclass
class Case:
    """An input, and what must become of it.

    Attributes:
        file: its name.
        content: its text, or bytes.
        words: of the command line.
        message: part of the refusal; empty: it is read.
        kind: of the task that is read.
        labels: of the task.
        metric: the primary one.
        says: part of the summary.
        first: the texts and the label, as people read it, of the row that the file has first.
        rows: that are read.
        others: contents of further files by name.
    """

    file: str
    content: str | bytes
    words: list[str] = field(default_factory=list)
    message: str = ""
    kind: str = "classification"
    labels: list[str] = field(default_factory=list)
    metric: str = ""
    says: str = ""
    first: tuple = ()
    rows: int = 0
    others: dict[str, str] = field(default_factory=dict)

    def has_validation(self) -> bool:
        """Whether a file of validation rows is given."""
        return any(word.startswith("validation=") for word in self.words)

    def words_of_a_cut(self) -> list[str]:
        """The words, with a cut large enough for a few rows."""
        return self.words if self.has_validation() else [*self.words, "validation=0.3"]


TWO = table("text,label", "neg", "pos")
NER = ("NUMBER O", "cow B-ACT", "painted O")
THREE_NER = ["B-ACT", "I-ACT", "O"]
VECTORS = table("text,rude,threat,insult", "1,1,1", "0,0,0", "1,0,0", "0,1,0")
SCORES = [f"{number / 10}" for number in range(1, 31)]

CASES = {
    # Names that are typed follow no rule of YAML.
    "name-hash": Case("a.csv", table("text,label,#stars", "x,0", "y,1", "x,2"), ["label=#stars"], labels=["0", "1", "2"]),
    "name-at": Case("a.csv", table("text,@class", "a", "b"), ["label=@class"], labels=["a", "b"]),
    "names-hash": Case("a.tsv", "Quality\t#1 String\t#2 String\n" + "".join(f"{row % 2}\t{text_of(row)}\tx\n" for row in range(30)), ["inputs=[#1 String,#2 String]", "label=Quality"], first=((text_of(0), "x"), "0")),
    "name-yes": Case("a.csv", table("text,yes", "a", "b"), ["label=yes"], labels=["a", "b"]),
    "name-null": Case("a.csv", table("text,null", "a", "b"), ["label=null"], labels=["a", "b"]),
    "name-colon": Case("a.csv", table("text,a: b", "a", "b"), ["label=a: b"], labels=["a", "b"]),
    "name-in-quotes": Case("a.csv", table("text,[x]", "a", "b"), ["label='[x]'"], labels=["a", "b"]),
    "labels-zeros": Case("a.csv", table("text,label", "01", "02", "03"), ["labels=[03,02,01]"], labels=["03", "02", "01"]),
    "labels-yes-no": Case("a.csv", table("text,label", "yes", "no"), ["labels=[yes,no]"], labels=["yes", "no"]),
    "labels-with-commas": Case("a.csv", table("text,label", '"a, b"', "c"), ['labels=["a, b",c]'], labels=["a, b", "c"]),
    "no-value": Case("a.csv", TWO, ["label="], "a value is expected after label="),
    # Labels that programs write for none are texts, until the user says so.
    "label-nan": Case("a.csv", table("text,label", "deu", "nan", "fra"), labels=["deu", "fra", "nan"], says="'nan' (10 rows) is a label here; if it stands for none, missing=nan"),
    "label-nan-json": Case("a.jsonl", json_lines("label", "Nan", "Pide"), labels=["Nan", "Pide"]),
    "label-null": Case("a.csv", table("text,label", "NULL", "pos", "neg"), labels=["NULL", "neg", "pos"], says="'NULL' (10 rows)"),
    "label-dash": Case("a.jsonl", json_lines("label", "- ", "x", "y"), ["missing=-"], labels=["x", "y"], rows=20),
    "label-minus-one": Case("a.csv", table("text,label", "-1", "0", "1", "2"), says="'-1' (8 rows) is a label here"),
    "label-minus-one-missing": Case("a.csv", table("text,label", "-1", "0", "1"), ["missing=-1"], labels=["0", "1"], rows=20),
    "label-signs": Case("a.csv", table("text,label", "-1", "1"), labels=["-1", "1"], says="2 labels (rows): -1 15, 1 15"),
    "label-decimal-commas": Case("a.csv", table("text,label", '"0,5"', '"1,0"', '"1,5"'), labels=["0,5", "1,0", "1,5"], says="labels are numbers with signs, such as '0,5', and each is a class"),
    "label-decimal-commas-of-two": Case("a.tsv", table("text\tlabel", "0,0", "1,0", separator="\t"), kind="multi-label", says="labels such as '0,0' are two numbers: if they are one, write 1.0 for 1,0"),
    "label-one-number": Case("a.jsonl", json_lines("label", 0, 1, 1.0), labels=["0", "1", "1.0"], says="labels that are one number: '1' (10) and '1.0' (10)"),
    "label-two-words-missing": Case("a.csv", table("text,label", "NA", "?", "a", "b"), ["missing=[NA,?]"], labels=["a", "b"], rows=14, says="rows that missing= leaves out: NA 8, ? 8"),
    "label-none-json": Case("a.jsonl", json_lines("label", "a", "b", None), message="line 3, line 6, line 9 and 7 more: label is empty"),
    "label-number-nan-json": Case("a.jsonl", json_lines("label", 1, 2, float("nan")), message="label is empty"),
    "label-nan-skip": Case("a.csv", table("text,label", "deu", "nan", "fra"), ["skip_incomplete=true"], labels=["deu", "fra", "nan"], rows=30),
    "label-number-among-words": Case("a.csv", table("text,label", "a", "b", "3"), labels=["3", "a", "b"]),
    "one-of-two-named-labels": Case("a.csv", table("text,label", "pos"), ["labels=[neg,pos]"], labels=["neg", "pos"], says="labels of no row: neg"),
    "integers-below-zero": Case("a.csv", table("text,label", "0", "1", "-1"), ["labels=[neg,neu,pos]"], labels=["neg", "neu", "pos"], first=((text_of(0),), "neu")),
    "integers-of-fewer-labels": Case("a.csv", table("text,label", "1", "3"), ["labels=[a,b,c]"], "labels= has 3 names, and the data have the 2 labels 1, 3"),
    "integers-and-words": Case("a.csv", table("text,label", "1", "a"), ["labels=[x,y]"], "unknown label '1'; the labels are x, y"),
    "labels-all-empty": Case("a.csv", table("text,label", ""), message="every cell of label is empty"),
    "labels-case": Case("a.csv", table("text,label", "Pos", "pos", "neg"), says="differ in case, spaces or hyphens only: 'Pos' (10) and 'pos' (10)"),
    "labels-spaces": Case("a.jsonl", json_lines("label", "a ", "a", "b"), labels=["a", "b"], says="10 labels without the spaces around them"),
    "class-vanishes": Case("a.jsonl", json_lines("label", "a", "b") + '{"text": " ", "label": "c"}\n', ["skip_incomplete=true"], "all 1 row of the class 'c' have no text"),
    "one-of-two-texts": Case("a.jsonl", "".join(json.dumps({"t": "" if row == 1 else "x", "u": text_of(row) if row else "", "label": "ab"[row % 2]}) + "\n" for row in range(30)), ["inputs=[t,u]", "skip_incomplete=true"], rows=30, first=(("x", ""), "a"), says="empty cells: t 1, u 1"),
    "both-texts-empty": Case("a.jsonl", "".join(json.dumps({"t": "" if row < 2 else "x", "u": "" if row == 1 else text_of(row), "label": "ab"[row % 2]}) + "\n" for row in range(30)), ["inputs=[t,u]", "skip_incomplete=true"], rows=29),
    "no-key-skip": Case("a.jsonl", json_lines("label", "a", "b") + '{"label": "a"}\n{"text": "last"}\n', ["skip_incomplete=true"], labels=["a", "b"], rows=30, says="empty cells: text 1, label 1"),
    "no-key-of-one-text": Case("a.jsonl", "".join(json.dumps({"t": "x", "u": text_of(row), "label": "ab"[row % 2]}) + "\n" for row in range(30)) + '{"u": "last", "label": "a"}\n', ["inputs=[t,u]", "skip_incomplete=true"], rows=31),
    "no-key-in-any-row": Case("a.jsonl", json_lines("label", "a", "b"), ["skip_incomplete=true", "validation=dev.jsonl"], "dev.jsonl, line 1: no column 'text'; the columns are txt, label", others={"dev.jsonl": '{"txt": "a", "label": "a"}\n'}),
    "one-of-two-texts-refused": Case("a.csv", 'title,body,label\n,b,x\n"t",b,y\n', ["inputs=[title,body]"], "line 2: title is empty"),
    # Rows without anything: at the end they are as empty lines, elsewhere other rows would move up.
    "empty-rows-at-end": Case("a.csv", TWO + ",\n , \n", labels=["neg", "pos"], rows=30),
    "empty-rows-at-end-wide": Case("a.csv", TWO + ",,,\n", labels=["neg", "pos"], rows=30),
    "empty-rows-at-end-tsv": Case("a.tsv", table("text\tlabel", "neg", "pos", separator="\t") + "\t\n  \n\n", labels=["neg", "pos"], rows=30),
    "empty-rows-at-end-json": Case("a.jsonl", json_lines("label", "a", "b") + '{"text": "", "label": null}\n{}\n', labels=["a", "b"], rows=30),
    "empty-row-within": Case("a.csv", "\n\n" + TWO + ',\none,pos\nlast,pos\n,\n', message="a.csv, line 34: the row is empty; fill it in or remove the row, or set skip_incomplete=true"),
    "empty-row-within-json": Case("a.jsonl", json_lines("label", "a", "b") + '{}\n{"text": "last", "label": "a"}\n', message="line 31: the row is empty"),
    "empty-row-within-skip": Case("a.jsonl", json_lines("label", "a", "b") + '{}\n{"text": "last", "label": "a"}\n', ["skip_incomplete=true"], labels=["a", "b"], rows=31),
    # Numbers among which other cells stand.
    "scores-na": Case("a.csv", table("text,label", *SCORES[:29], "NA"), message="line 31: label is 'NA', no number, where 29 of 30 rows have numbers"),
    "scores-percent": Case("a.csv", table("text,label", *(f"{score}%" for score in SCORES)), message="label is '0.1%', '0.2%', '0.3%' and 27 more, no number"),
    "scores-below": Case("a.csv", table("text,label", "<0.1", *SCORES[1:]), message="line 2: label is '<0.1', no number"),
    "scores-comma": Case("a.tsv", table("text\tlabel", *(score.replace(".", ",") for score in SCORES), separator="\t"), message="such as 0.5 for 0,5"),
    "scores-missing": Case("a.csv", table("text,label", *SCORES[:29], "NA"), ["missing=NA"], kind="regression", rows=29, metric="spearman"),
    "scores-classes": Case("a.csv", table("text,label", "1", "2", "3", "unknown"), ["kind=classification"], labels=["1", "2", "3", "unknown"]),
    "scores-named": Case("a.csv", table("text,label", "1", "2", "unknown"), ["labels=[1,2,unknown]"], labels=["1", "2", "unknown"]),
    "scores-half": Case("a.csv", table("text,label", "1", "unknown"), message="label is 'unknown', no number, where 15 of 30 rows have numbers"),
    "scores-kind": Case("a.csv", table("text,label", "1", "2", "three"), ["kind=regression"], "label is 'three', no number"),
    "many-labels": Case("a.csv", table("text,label", *map(str, range(25)), rows=30), labels=[*map(str, range(25))], says="25 labels in 30 rows: are these numbers? Give kind=regression"),
    # Several labels in a row.
    "vectors": Case("a.jsonl", json_lines("labels", [1, 1, 1], [0, 0, 0], [1, 0, 0]), kind="multi-label", labels=["0", "1", "2"], first=((text_of(0),), ["0", "1", "2"])),
    "vectors-named": Case("a.jsonl", json_lines("labels", [0, 0, 1], [0, 0, 0]), ["labels=[rude,threat,insult]"], kind="multi-label", labels=["rude", "threat", "insult"], first=((text_of(0),), ["insult"])),
    "vectors-booleans": Case("a.jsonl", json_lines("labels", [True, False], [False, False]), kind="multi-label", first=((text_of(0),), ["0"])),
    "vectors-of-two-lengths": Case("a.jsonl", json_lines("labels", [1, 1, 1], [0, 0, 0], [1, 0]), message="line 3, line 6, line 9 and 7 more: label is [1, 0], not 3 numbers 0 or 1"),
    "vectors-as-text": Case("a.csv", table("text,labels", '"[0, 1, 0]"', '"[1, 1, 0]"'), kind="multi-label", labels=["0", "1", "2"], first=((text_of(0),), ["1"])),
    "vectors-of-numpy": Case("a.csv", table("text,labels", "[0 1 0]", "[1 1 0]"), kind="multi-label", first=((text_of(0),), ["1"])),
    "vectors-one-hot": Case("a.jsonl", json_lines("label", [0, 1], [1, 0]), kind="multi-label", says="each row has exactly one label"),
    "vectors-of-two-names": Case("a.jsonl", json_lines("label", [0, 1, 1], [1, 0, 0]), ["labels=[a,b]"], "labels= has 2 names, and each row has 3 numbers"),
    "vectors-in-one-class": Case("a.jsonl", json_lines("label", [0, 1, 1], [1, 0, 0]), ["kind=classification"], "label has several labels in a row"),
    "label-columns": Case("a.csv", VECTORS, ["label=[rude,threat,insult]"], kind="multi-label", labels=["rude", "threat", "insult"], first=((text_of(0),), ["rude", "threat", "insult"]), says="rude 15, threat 15, insult 8"),
    "label-columns-not-binary": Case("a.csv", VECTORS.replace("1,1,1", "1,2,1"), ["label=[rude,threat,insult]"], "label is ['1', '2', '1'], not 3 numbers 0 or 1"),
    "label-columns-wrong": Case("a.csv", VECTORS, ["label=[rude,thread]"], "no column 'thread'; did you mean 'threat'?"),
    "lists-as-text": Case("a.csv", table("text,labels", "\"['joy', 'fear']\"", "[]", "['fear']"), kind="multi-label", labels=["fear", "joy"], first=((text_of(0),), ["fear", "joy"])),
    "lists-of-numpy": Case("a.csv", table("text,labels", "\"['joy'\n 'fear']\"", "[]", "['fear']"), kind="multi-label", labels=["fear", "joy"], first=((text_of(0),), ["fear", "joy"])),
    "lists-with-brackets": Case("a.csv", table("text,labels", "\"['joy (not [me])', 'fear']\"", "['fear']"), kind="multi-label", labels=["fear", "joy (not [me])"], first=((text_of(0),), ["fear", "joy (not [me])"])),
    "lists-and-a-text": Case("a.jsonl", json_lines("labels", ["joy", "fear"], "fear"), kind="multi-label", labels=["fear", "joy"], first=((text_of(0),), ["fear", "joy"])),
    "several-columns-of-one-class": Case("a.csv", VECTORS, ["label=[rude,threat]", "kind=classification"], "rude has several labels in a row, and kind=classification takes one"),
    "lists-of-integers": Case("a.jsonl", json_lines("labels", [0, 2], [1], []), ["labels=[x,y,z]"], kind="multi-label", labels=["x", "y", "z"], first=((text_of(0),), ["x", "z"])),
    "parts-of-labels": Case("a.csv", table("text,label", "a|b", "a", "b"), says="as 'a|b' has: do rows have several? Give separator=|"),
    # Names of integers.
    "integers-named": Case("a.csv", table("text,label", "0", "1"), ["labels=[neg,pos]"], labels=["neg", "pos"], first=((text_of(0),), "neg"), says="0 is neg, 1 is pos"),
    "integers-from-one": Case("a.csv", table("text,label", "4", "2", "1", "3"), ["labels=[World,Sports,Business,Tech]"], first=((text_of(0),), "Tech"), says="1 is World"),
    "integers-too-many": Case("a.csv", table("text,label", "0", "1", "2"), ["labels=[neg,pos]"], "labels= has 2 names, and the data have the 3 labels 0, 1, 2"),
    "integers-one-unseen": Case("a.csv", table("text,label", "0", "2"), ["labels=[a,b,c]"], first=((text_of(0),), "a"), says="labels of no row: b"),
    "tags-named": Case("a.jsonl", words(["cow", "painted"], [1, 0]), ["labels=[O,B-ACT,I-ACT]"], kind="token-classification", labels=["O", "B-ACT", "I-ACT"], metric="ner_f1"),
    "tags-numbers": Case("a.jsonl", words(["cow", "painted"], [1, 0]), kind="token-classification", metric="word_accuracy", says="labels=[O,B-PER,I-PER] names numbers in their order"),
    # Files.
    "columns-twice": Case("a.csv", table("text,label,text", "a,x", "b,y"), message="a.csv, line 1: two columns are called 'text'; rename one of them"),
    "columns-twice-tsv": Case("a.tsv", table("text\tlabel\ttext", "a\tx", separator="\t"), message="two columns are called 'text'"),
    "columns-twice-json": Case("a.jsonl", '{"text": "a", "text": "b", "label": "c"}\n', message="a.jsonl, line 1: two columns are called 'text'"),
    "columns-without-name": Case("a.csv", table("text,label,,", "a,,", "b,,"), labels=["a", "b"]),
    "cr-ends": Case("a.csv", table("text,label", "a", "b", end="\r"), rows=30, labels=["a", "b"]),
    "cr-in-cell": Case("a.tsv", table("text\tlabel", "a", "b", separator="\t").replace("the cow", "the\rcow", 1), rows=30, first=((text_of(0),), "a")),
    "cr-in-csv": Case("a.csv", TWO.replace("the cow", "the\rcow", 1), message="line 2: a carriage return stands in a cell without quotes"),
    "crlf": Case("a.csv", TWO.replace("\n", "\r\n"), labels=["neg", "pos"]),
    "latin-1-tsv": Case("a.tsv", table("text\tlabel", "caf\xe9", "b", separator="\t").encode("latin-1"), message="a.tsv, line 2: not UTF-8 (byte 0xe9)"),
    "latin-1": Case("a.csv", TWO.replace("duck", "caf\xe9").encode("latin-1"), message="a.csv, line 3: not UTF-8 (byte 0xe9); save the file as UTF-8"),
    "utf-16": Case("a.csv", TWO.replace("duck", "café").encode("utf-16"), labels=["neg", "pos"], rows=30),
    "utf-16-no-mark": Case("a.csv", TWO.encode("utf-16-le"), message="has bytes of 0, as UTF-16 without its mark"),
    "utf-32": Case("a.csv", TWO.encode("utf-32"), labels=["neg", "pos"]),
    "bom": Case("a.csv", TWO.encode("utf-8-sig"), labels=["neg", "pos"]),
    "backslash-quotes": Case("a.csv", TWO + '"she said \\"yes\\", and left",neg\n', message='a.csv, line 32: a quote within a cell is written twice (""), not after a backslash'),
    "open-quote": Case("a.csv", TWO + '"never closed,neg\n', message="line 32: a quote is opened and never closed"),
    "text-after-quote": Case("a.csv", TWO + '"a" dog,neg\n', message="line 32: a cell goes on after its closing quote"),
    "very-long-cell": Case("a.csv", TWO + f"{'cow ' * 50_000},pos\n", labels=["neg", "pos"], rows=31),
    "spaces-after-commas": Case("a.csv", 'text, label\n"the cow, then", neg\n' + "".join(f'"{text_of(row)}", pos\n' for row in range(9)), first=(("the cow, then",), "neg"), labels=["neg", "pos"]),
    "space-before-a-quote": Case("a.csv", "label,text\n" + "".join(f"{'ab'[row % 2]},{text_of(row)}\n" for row in range(9)) + 'a, "x, y"\n', message="line 11: a space stands between a comma and a quote; remove it"),
    "no-header": Case("a.csv", "".join(f'"{row % 4}","{text_of(row)}","again"\n' for row in range(9)), message="The first line is read as their names; if it is a row, write a line of names above it"),
    "json-array-line": Case("a.jsonl", json.dumps([json.loads(line) for line in json_lines("label", "a", "b").splitlines()]), rows=30, labels=["a", "b"]),
    "json-indented": Case("a.jsonl", json.dumps([{"text": text_of(row), "label": "ab"[row % 2]} for row in range(9)], indent=1), rows=9),
    "json-ending": Case("a.json", json.dumps([{"text": text_of(row), "label": "ab"[row % 2]} for row in range(9)]), rows=9),
    "json-indented-objects": Case("a.jsonl", '{\n "text": "a",\n "label": "b"\n}\n', message="a.jsonl, line 1: not JSON"),
    "json-array-of-texts": Case("a.json", '["a", "b"]', message="a.json, object 1: a text is not an object of columns"),
    "json-broken-line": Case("a.jsonl", json_lines("label", "a", "b") + '{"text": "x", \n', message="a.jsonl, line 31: not JSON"),
    "json-lists-in-lines": Case("a.jsonl", '\n["a", 1]\n["b", 2]\n', message="not a JSON array"),
    "tsv-quotes": Case("a.tsv", 'text\tlabel\n"a cow said ""no"" twice"\ta\n' + "".join(f"{text_of(row)}\tb\n" for row in range(9)), first=(('a cow said "no" twice',), "a"), says="the quotes around cells are removed; quotes=false keeps them"),
    "tsv-quoted-line-ends": Case("a.tsv", 'text\tlabel\n"a cow\nslept"\ta\n' + "".join(f"{text_of(row)}\tb\n" for row in range(9)), first=(("a cow\nslept",), "a"), rows=10),
    "tsv-all-quoted": Case("a.tsv", "text\tlabel\n" + "".join(f'"{text_of(row)}"\t{row % 2}\n' for row in range(9)), first=((text_of(0),), "0")),
    "tsv-all-quoted-line-ends": Case("a.tsv", '"text"\t"label"\n' + "".join(f'"{text_of(row)}\tand\nmore"\t"{row % 2}"\n' for row in range(9)), first=((f"{text_of(0)}\tand\nmore",), "0"), says="the quotes around cells are removed"),
    "tsv-quotes-but-for-numbers": Case("a.tsv", '"text"\t"label"\n' + "".join(f'"{text_of(row)}"\t{row % 2}\n' for row in range(9)) + '"a"\t""\n', ["skip_incomplete=true"], first=((text_of(0),), "0"), rows=9),
    "tsv-quotes-of-the-text": Case("a.tsv", 'text\tlabel\n"No way"\ta\n"Stop" she said\tb\n' + "".join(f"{text_of(row)}\ta\n" for row in range(9)), first=(('"No way"',), "a"), says="1 cells stand in quotes, which are text; quotes=true removes them"),
    "tsv-quotes-of-validation": Case("train.tsv", table("text\tlabel", "a", "b", separator="\t"), ["validation=dev.tsv"], rows=30, says="the quotes around cells are removed", others={"dev.tsv": 'text\tlabel\n"a cow\nslept"\ta\n"x ""y"""\tb\n'}),
    "tsv-quotes-kept": Case("a.tsv", 'text\tlabel\n"a ""b"""\ta\n' + "".join(f"{text_of(row)}\tb\n" for row in range(9)), ["quotes=false"], first=(('"a ""b"""',), "a")),
    "lfs": Case("a.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", message="a.csv is a pointer of Git LFS, not the data: run git lfs pull"),
    "lfs-parquet": Case("a.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", message="is a pointer of Git LFS"),
    "gzip": Case("a.csv", gzip.compress(TWO.encode()), message="a.csv is compressed by gzip: unpack it"),
    "excel": Case("a.csv", b"PK\x03\x04rest", message="a ZIP or Excel file"),
    "parquet-as-csv": Case("a.csv", b"PAR1rest", message="is a Parquet file: rename it"),
    "csv-as-parquet": Case("a.parquet", TWO, message="a.parquet is not a Parquet file"),
    "damaged-parquet": Case("a.parquet", b"PAR1restPAR1", message="the Parquet file is damaged"),
    "endings": Case("train.csv", TWO, ["validation=dev.tsv"], labels=["neg", "pos"], rows=30, others={"dev.tsv": table("text\tlabel", "neg", "pos", separator="\t", rows=8)}),
    "endings-test": Case("a.jsonl", json_lines("label", "a", "b"), ["test=new.csv"], rows=30, others={"new.csv": "text,x\na,b\n"}),
    "endings-unknown": Case("a.csv", TWO, ["validation=dev.txt"], "dev.txt: rename it so that it ends in .csv, .tsv", others={"dev.txt": TWO}),
    "endings-label": Case("a.csv", TWO, ["validation=dev.jsonl"], "dev.jsonl, line 1, line 2, line 3 and 27 more: unknown label 'x'", others={"dev.jsonl": json_lines("label", "x")}),
    "semicolons": Case("a.csv", TWO.replace(",", ";"), message="The cells seem to be separated by semicolons; a .csv file has commas: write it with commas, and numbers as 0.5 instead of 0,5"),
    "commas-in-tsv": Case("a.tsv", TWO, message="The cells seem to be separated by commas; a .tsv file has tabs: rename it so that it ends in .csv"),
    "label-of-validation-alone": Case("a.csv", TWO, ["validation=dev.csv"], "dev.csv, line 2, line 4, line 6 and 1 more: unknown label 'x'; the labels are neg, pos; correct it, add it to labels=, or leave its rows out by missing=", others={"dev.csv": table("text,label", "x", "neg", rows=8)}),
    "label-of-validation-named": Case("a.csv", TWO, ["validation=dev.csv", "labels=[neg,pos,x]"], labels=["neg", "pos", "x"], rows=30, others={"dev.csv": table("text,label", "x", "neg", rows=8)}),
    "html": Case("a.csv", "<!DOCTYPE html>\n<html>", message="a.csv is a page of HTML, not the data"),
    "label-object": Case("a.jsonl", json_lines("label", {"a": 1}, "b"), message="label holds objects or lists in lists"),
    "labels-nested": Case("a.jsonl", json_lines("labels", [["a"], ["b"]]), message="labels holds objects or lists in lists"),
    "labels-of-objects": Case("a.jsonl", json_lines("labels", [{"a": 1}], ["b"]), message="labels holds objects or lists in lists"),
    "half-a-pair": Case("a.csv", "Question,Text,Label\n" + "".join(f"why,{text_of(row)},{row % 2}\n" for row in range(30)), labels=["0", "1"], first=((text_of(0),), "0")),
    "text-as-label": Case("a.csv", TWO, ["inputs=label", "label=label"], "the column 'label' would be text and label"),
    # CoNLL.
    "conll-ids": Case("a.conll", sentences("# id 7f-a\tdomain=xx", "NUMBER _ _ O", "cow _ _ B-ACT"), kind="token-classification", labels=["B-ACT", "O"], rows=20, metric="ner_f1"),
    "conll-ids-spaces": Case("a.conll", sentences("# id 7f-a domain=xx", "NUMBER _ _ O", "cow _ _ B-ACT"), kind="token-classification", labels=["B-ACT", "O"], rows=20),
    "conll-hash-is-a-word": Case("a.conll", sentences("# O", "NUMBER O", "#cow B-ACT"), kind="token-classification", labels=["B-ACT", "O"], first=(("# n0 #cow",), ["O", "O", "B-ACT"])),
    "conll-no-break": Case("a.conll", sentences("NUMBER O", "10\xa0000 B-ACT"), kind="token-classification", first=(("n0 10\xa0000",), ["O", "B-ACT"])),
    "conll-ideographic": Case("a.conll", sentences("NUMBER O", "山\u3000川 B-LOC"), kind="token-classification", first=(("n0 山\u3000川",), ["O", "B-LOC"])),
    "conll-one-tab": Case("a.conll", sentences("NUMBER O", "cow B-ACT") + "\nprices\tO\nrose O\n", kind="token-classification", rows=21, labels=["B-ACT", "O"]),
    "conll-spaces-in-tabs": Case("a.conll", sentences("NUMBER\tO", "New York\tB-LOC"), kind="token-classification", first=(("n0 New York",), ["O", "B-LOC"])),
    "conll-no-last-line-end": Case("a.conll", "-DOCSTART- O\n\n" + sentences(*NER, between="\n\n \n").rstrip(), kind="token-classification", labels=["B-ACT", "O"], rows=20),
    "conll-no-tag": Case("a.conll", sentences(*NER) + "\nprices\nrose O\n", message="a.conll, line 81: 1 columns ('prices'), where most lines have 2"),
    "conllu": Case("a.conllu", sentences("# text = x", *("\t".join([at, form, "_", tag, *"______"]) for at, form, tag in [("1-2", "NUMBERdel", "_"), ("1", "NUMBER", "ADP"), ("2", "el", "DET"), ("2.1", "x", "X")])), kind="token-classification", labels=["ADP", "DET"], first=(("n0 el",), ["ADP", "DET"]), metric="word_accuracy"),
    # Schemes of tags, and words without tokens.
    "tags-bmes": Case("a.conll", sentences("NUMBER O", "a B-ACT", "b M-ACT", "c E-ACT", "d S-LOC"), kind="token-classification", metric="ner_f1"),
    "tags-io": Case("a.conll", sentences("NUMBER O", "cow actor"), kind="token-classification", metric="word_accuracy", says="only word_accuracy is measured, as for parts of speech: actor are no entities"),
    "tags-underscore": Case("a.conll", sentences("NUMBER O", "cow B_ACT"), kind="token-classification", metric="word_accuracy", says="such as O, B-PER, I-PER, with a hyphen"),
    "words-blank": Case("a.jsonl", words(["cow", " ", "painted"], ["B-ACT", "O", "O"]), kind="token-classification", first=(("n0 cow   painted",), ["O", "B-ACT", "O", "O"])),
    "words-empty": Case("a.jsonl", words(["cow", "", "painted"], ["B-ACT", "O", "O"]), kind="token-classification", first=(("n0 cow  painted",), ["O", "B-ACT", "O", "O"])),
    "words-zero-width": Case("a.jsonl", words(["cow", "\u200b"], ["B-ACT", "O"]), kind="token-classification", rows=20),
    "words-no-break-text": Case("a.jsonl", "".join(json.dumps({"tokens": f"n{row} 10\xa0000", "tags": "O B-N"}) + "\n" for row in range(9)), ["kind=token-classification"], kind="token-classification", first=(("n0 10\xa0000",), ["O", "B-N"])),
    "words-as-text": Case("a.csv", "tokens,ner_tags\n" + "".join(f"\"['n{row}', '(', 'New York']\",\"['O', 'O', 'B-LOC']\"\n" for row in range(9)), kind="token-classification", labels=["B-LOC", "O"], first=(("n0 ( New York",), ["O", "O", "B-LOC"])),
    "words-of-numpy": Case("a.csv", "tokens,ner_tags\n" + "".join(f"['n{row}' '(' 'cow'],[0 0 2]\n" for row in range(9)), ["labels=[O,B-LOC,B-ACT]"], kind="token-classification", first=(("n0 ( cow",), ["O", "O", "B-ACT"])),
    "words-in-brackets": Case("a.tsv", "tokens\ttags\n" + "".join(f"[ {row} ]\tO B-N O\n" for row in range(9)), ["kind=token-classification"], kind="token-classification", first=(("[ 0 ]",), ["O", "B-N", "O"])),
    "words-all-blank": Case("a.jsonl", words(["cow"], ["B-X"]) + '{"tokens": [" "], "ner_tags": ["O"]}\n', message="line 21: tokens is empty"),
    # F1.
    "f1-of-integers": Case("a.csv", table("text,label", "0", "1"), ["labels=[neg,pos]"], says="f1 is of the class 'pos', the second; labels=[1,0] makes it 'neg'"),
    "f1-of-the-other": Case("a.csv", table("text,label", "0", "1"), ["labels=[1,0]"], labels=["1", "0"], first=((text_of(0),), "0"), says="f1 is of the class '0'"),
    "f1": Case("a.csv", table("text,label", "hate", "not_hate"), says="f1 is of the class 'not_hate', the second; labels=[not_hate,hate] makes it 'hate'"),
}  # fmt: skip


def write(case: Case) -> None:
    """Write the files of a case into the working directory."""
    content = case.content if isinstance(case.content, bytes) else case.content.encode()
    Path(case.file).write_bytes(content)
    for name, text in case.others.items():
        Path(name).write_text(text)


@pytest.mark.parametrize("name", CASES)
def test_an_input_is_read_or_refused(name, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    case = CASES[name]
    write(case)
    if case.message:
        with pytest.raises(HifiError) as refused:
            task = task_spec.load(register(case.file, case.words_of_a_cut()))
            task_sources.load(task, data_dir=None)
        line = str(refused.value)
        assert case.message in line
        assert "\n" not in line
        assert case.file in line or case.words
        return
    task = task_spec.load(register(case.file, case.words_of_a_cut()))
    data = task_sources.load(task, data_dir=None)
    assert task.kind == case.kind
    if case.labels:
        assert task.labels == case.labels
    if case.metric:
        assert task.primary == case.metric
    assert case.says in caplog.text
    parts = [data.rows("train"), *([] if case.has_validation() else [data.rows("validation")])]
    rows = sorted((row for part in parts for row in part), key=lambda row: int(row.id))
    if case.rows:
        assert len(rows) == case.rows
    if case.first:
        assert (rows[0].sequences[0], task.rules.label_word(rows[0].label)) == case.first
    # `hifi ls` has the same lines as comments, and what follows is the same YAML.
    described = from_data(case.file, case.words_of_a_cut())
    assert all(line in caplog.text for line in described.summary)
    assert yaml.safe_load(described.with_summary()) == yaml.safe_load(described.text)
    assert described.with_summary().splitlines()[1] == f"# {described.summary[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.message])
def test_what_is_read_is_trained(name, hifi):
    """The demo's encoder trains on each input that is read; texts of one word are enough."""
    case = CASES[name]
    write(case)
    command = ["train", "--task", case.file, "--protocol", "demo", "--method", "linear-probing"]
    answer = hifi(*command, "epochs=1", *case.words_of_a_cut())
    assert answer.code == 0, answer.err
    assert case.says in answer.err
    (record,) = Path("results/runs").glob("*/*/*/*/seed1/results.json")
    assert json.loads(record.read_text())["status"] == "done"
