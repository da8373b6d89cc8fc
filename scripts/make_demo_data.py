"""Generate the demo's five small English tasks from a grammar, in the file formats of the GLUE download and in CoNLL columns:
python scripts/make_demo_data.py writes configs/tasks/demo.

Acceptability (CoLA's layout) needs agreement, argument structure and word order; Entailment (RTE's) and
Similarity (STS-B's) need a comparison of the two sentences part by part. Topics has several labels per row: the kinds of
people and things that the sentence is about. Roles has a tag per word: which words are the
logical subject, object, recipient and place. The data depend only on a seed.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Proposition = dict[str, Any]  # the parts of a statement; for an edit, the parts that it changes

TRAIN_ROWS, DEV_ROWS = 1000, 200
POSITIVE_FRACTION = (
    0.55  # of label 1 / entailment: there is a majority class, but predicting it scores low
)

# hypernym -> nouns; "=" joins synonyms
NOUNS = {
    "person": "doctor=physician boy=lad woman=lady teacher nurse farmer girl man king queen singer baker",
    "animal": "dog=hound rabbit=bunny cat horse fox cow duck goat lion monkey",
    "vehicle": "car=automobile bicycle=bike truck=lorry bus tram boat",
    "fruit": "apple pear plum banana peach lemon",
    "garment": "coat=jacket hat=cap shirt scarf glove skirt",
    "tool": "shovel=spade hammer drill ladder axe rope",
    "container": "box=crate bag=sack bottle drawer basket jar",
    "document": "book letter map poem report ticket",
}
# fmt: off
IRREGULAR = {"man": "men", "woman": "women", "lady": "ladies", "lorry": "lorries", "bunny": "bunnies",
             "fox": "foxes", "box": "boxes", "bus": "buses", "peach": "peaches"}
GENDER = {"boy": "himself", "lad": "himself", "man": "himself", "king": "himself", "girl": "herself",
          "woman": "herself", "lady": "herself", "queen": "herself"}
LIVING, THINGS = ("person", "animal"), ("vehicle", "fruit", "garment", "tool", "container")

# frame -> verbs ("=" joins synonyms)
VERBS = {
    "living": "chase=pursue spot=notice frighten=scare greet admire praise",  # always with a living object
    "thing": "buy=purchase find=discover repair=fix lift damage borrow",  # always with a thing as object
    "alone": "disappear=vanish cry=weep sleep smile arrive hesitate",  # never with an object
    "give": "give send lend show hand",  # "her the book" or "the book to her"
    "explain": "donate explain return describe",  # "the book to her" only
    "claim": "think hope claim",  # that ...
}
FORMS = {  # past, participle and -ing form of irregular verbs
    "spot": "spotted spotted spotting", "buy": "bought bought buying", "find": "found found finding",
    "cry": "cried cried crying", "weep": "wept wept weeping", "sleep": "slept slept sleeping",
    "give": "gave given giving", "send": "sent sent sending", "lend": "lent lent lending",
    "show": "showed shown showing", "think": "thought thought thinking",
}
LOOKS, MOODS = "big=large small=little old black white brown", "glad=happy angry=furious clever=smart young famous"
PLACES = ("in the garden=in the yard,in the shop=in the store,near the road=near the street,in the kitchen,"
          "at the station,near the river,at the market,behind the house")
MANNERS = "quickly=rapidly quietly=silently slowly gently suddenly proudly"
# complementary adjectives: denying one affirms the other
OPPOSITES = {"person": "awake:asleep present:absent married:single", "animal": "awake:asleep alive:dead tame:wild",
             "container": "open:closed full:empty clean:dirty"}
NOUN_PARTS = ("subject", "object", "recipient")
ROLES = {"living": LIVING, "thing": THINGS, "give": ("document",)}  # frame -> kinds of its object
WEIGHTS = {"subject": 3.0, "verb": 3.0, "object": 3.0, "recipient": 2.0, "subject adjective": 1.0,
           "object adjective": 1.0, "place": 1.5, "manner": 1.0}  # weight of each part in the similarity
HEADERS = {"Acceptability": "", "Entailment": "index sentence1 sentence2 label",
           "Similarity": "index genre filename year old_index source1 source2 sentence1 sentence2 score",
           "Topics": "index sentence labels", "Roles": ""}
SINGULAR, PLURAL = ("the", "a", "this", "that", "every"), ("the", "these", "those", "many", "several")  # "the": either
FAULTS = ("agreement", "determiner", "order", "form", "object", "dative", "reflexive", "gap", "clause")
# fmt: on


def _synonym_groups(text: str, separator: str | None = None) -> list[tuple[str, ...]]:
    """Split a table into tuples of synonyms."""
    return [tuple(item.split("=")) for item in text.split(separator)]


def _words(text: str, separator: str | None = None) -> list[str]:
    """All words of a table, synonyms included."""
    return [word for group in _synonym_groups(text, separator) for word in group]


KIND = {noun: kind for kind, text in NOUNS.items() for noun in _words(text)}
OPPOSITE = {
    adjective: opposite
    for text in OPPOSITES.values()
    for pair in text.split()
    for adjective, opposite in (pair.split(":"), pair.split(":")[::-1])
}
CONCEPT = {  # every word -> its synonyms, including itself
    word: group
    for text in (*NOUNS.values(), *VERBS.values(), LOOKS, MOODS, MANNERS)
    for group in _synonym_groups(text)
    for word in group
} | {place: group for group in _synonym_groups(PLACES, ",") for place in group}


def _adjectives(noun: str) -> list[str]:
    """Return the adjectives that fit the noun: only living beings have moods."""
    return _words(LOOKS) + (_words(MOODS) if KIND.get(noun, noun) in LIVING else [])


def _forms(base: str) -> list[str]:
    """Return the verb's past, participle and -ing form."""
    stem = base.removesuffix("e")
    return FORMS.get(base, f"{stem}ed {stem}ed {stem}ing").split()


def _join(words: Sequence[str | None]) -> str:
    """Join words to a sentence, with "an" before a vowel."""
    tokens = [*" ".join(word for word in words if word).split(), "."]
    vowels = [token[0] in "aeiou" for token in (*tokens[1:], ".")]
    return " ".join(
        "an" if token == "a" and vowel else token
        for token, vowel in zip(tokens, vowels, strict=True)
    )


# --- single sentences: correct sentences use the same constructions as wrong ones, so that these do not reveal the label


def _phrase(
    rng: random.Random, kinds: tuple[str, ...], plural: bool, fault: str = "", noun: str = ""
) -> list[str]:
    """Return a determiner, sometimes an adjective, and a noun; `fault` breaks the determiner's number or the word order."""
    noun = noun or rng.choice(_words(NOUNS[rng.choice(kinds)]))
    words = [IRREGULAR.get(noun, noun + "s") if plural else noun]
    determiners = PLURAL if plural != (fault == "determiner") else SINGULAR
    if rng.random() < 0.3 or fault in ("order", "order?"):
        words = [rng.choice(_adjectives(noun)), *words]
    words = [
        rng.choice(determiners[1:] if fault in ("determiner", "determiner?") else determiners),
        *words,
    ]
    if fault == "order":
        index = rng.choice((0, 1))
        words[index : index + 2] = words[index : index + 2][::-1]
    return words


def _verb(rng: random.Random, frame: str, plural: bool, fault: str = "") -> list[str]:
    """Return a finite verb group of the frame; `fault` breaks agreement or the form after an auxiliary."""
    base, plural = rng.choice(_words(VERBS[frame])), plural != (fault == "agreement")
    past, participle, ing = _forms(base)
    third = {"cry": "cries", "vanish": "vanishes"}.get(base, base + "s")
    groups = {
        "present": [base if plural else third],
        "perfect": ["have" if plural else "has", participle],
        "progressive": ["are" if plural else "is", ing],
        "past": [past],
        "modal": [rng.choice(("will", "can", "did not")), base],
    }
    if fault in ("agreement", "agreement?"):  # only forms that show their number
        return groups[rng.choice(("present", "present", "perfect", "progressive"))]
    if fault in ("form", "form?"):
        name = rng.choice(("modal", "perfect", "progressive"))
        wrong = {"modal": (past, ing), "perfect": (base, ing), "progressive": (base, third)}[name]
        return [groups[name][0], rng.choice(wrong)] if fault == "form" else groups[name]
    return groups[rng.choice(("past", *groups))]


def _predicate(rng: random.Random, plural: bool, fault: str = "") -> list[str]:
    """Return a verb with its object, if it has one."""
    frame = rng.choice(("living", "thing", "alone"))
    words = _verb(rng, frame, plural, fault)
    if frame != "alone":
        words += _phrase(rng, LIVING if frame == "living" else THINGS, rng.random() < 0.4)
    return words


def _sentence(rng: random.Random, fault: str, broken: bool) -> str:
    """Return a sentence with the construction of `fault`, broken or correct."""
    plural, inner_plural = (
        rng.random() < 0.5,
        rng.random() < 0.5,
    )  # of the subject, of the inner phrase
    construction = fault if broken else fault + "?"
    subject = _phrase(rng, LIVING, plural)
    other = _phrase(rng, LIVING, rng.random() < 0.5)
    if fault == "agreement":  # a phrase with its own number may be between the subject and its verb
        inner, verb = _phrase(rng, LIVING, inner_plural), _verb(rng, "living", plural)
        between = rng.choice(
            (
                [],
                ["near", *inner],
                ["that", *verb, *inner],
                ["that", *inner, *_verb(rng, "living", inner_plural)],
            )
        )
        words = subject + between + _predicate(rng, plural, construction)
    elif fault in ("determiner", "order"):
        words = _phrase(rng, LIVING, plural, construction) + _predicate(rng, plural)
        if rng.random() < 0.5:
            words = (
                subject
                + _verb(rng, "living", plural)
                + _phrase(rng, LIVING, inner_plural, construction)
            )
    elif fault == "form":
        words = subject + _predicate(rng, plural, construction)
    elif fault == "object":
        frame = rng.choice(("living", "alone"))
        words = subject + _verb(rng, frame, plural)
        words += other if (frame == "living") != broken else []
    elif fault == "dative":
        frame = rng.choice(("give", "explain"))
        gift = _phrase(rng, ("document",), rng.random() < 0.4)
        good = [[*gift, "to", *other], [*other, *gift]][: 2 if frame == "give" else 1]
        bad = [["to", *other], ["to", *other], [*gift, *other], [*other, *gift]][
            : 3 if frame == "give" else 4
        ]
        words = subject + _verb(rng, frame, plural) + rng.choice(bad if broken else good)
    elif fault == "reflexive":
        noun, plural = (
            rng.choice(sorted(GENDER)),
            rng.random() < 1 / 3,
        )  # each pronoun is right as often as wrong
        right = "themselves" if plural else GENDER[noun]
        fits = [word for word in ("himself", "herself", "themselves") if (word == right) != broken]
        words = [
            *_phrase(rng, (), plural, noun=noun),
            *_verb(rng, "living", plural),
            rng.choice(fits),
        ]
    elif fault == "gap":  # a relative clause omits the object that it refers to
        inner = ["that", *_phrase(rng, LIVING, inner_plural), *_verb(rng, "living", inner_plural)]
        words = subject + inner + (other if broken else []) + _predicate(rng, plural)
    else:  # clause: only some verbs take "that ...", and a complete clause must follow
        is_complete = not broken or rng.random() < 0.5
        frame = rng.choice(("alone", "living")) if broken and is_complete else "claim"
        words = [*subject, *_verb(rng, frame, plural), "that", *_phrase(rng, LIVING, inner_plural)]
        words += _predicate(rng, inner_plural) if is_complete else []
    if rng.random() < 0.3:
        words.append(rng.choice(_words(PLACES, ",")))
    return _join(words)


def sentences(rng: random.Random) -> Iterator[str]:
    """Yield correct sentences of the acceptability task's grammar without end, for pretraining."""
    while True:
        yield _sentence(rng, rng.choice(FAULTS), broken=False)


# --- pairs: a proposition is a dict of parts; an edit is a smaller dict that changes some of them


def _same(first: str | None, second: str | None) -> bool:
    """Return whether two words are synonyms, or both are missing."""
    return first == second or (
        first is not None and second is not None and first in CONCEPT.get(second, ())
    )


def _related(first: str, second: str) -> bool:
    """Return whether one noun is a synonym, hypernym or hyponym of the other."""
    return _same(first, second) or KIND.get(first) == second or KIND.get(second) == first


def _nouns(kinds: tuple[str, ...], used: list[str]) -> list[str]:
    """Return the nouns of some kinds, and their hypernyms, that are not related to the nouns already used."""
    nouns = [noun for kind in kinds for noun in (*_words(NOUNS[kind]), kind)]
    return [noun for noun in nouns if not any(_related(noun, other) for other in used)]


def _proposition(rng: random.Random) -> Proposition:
    """Return a random proposition: who did what to whom, where and how."""
    frame = rng.choice(("living", "living", "living", "thing", "thing", "alone", "give", "state"))
    p: Proposition = {"frame": frame, "swapped": rng.random() < 0.3, "negative": rng.random() < 0.3}
    if frame == "state":
        kind = rng.choice(sorted(OPPOSITES))
        p |= {
            "subject": rng.choice(_nouns((kind,), [])),
            "verb": rng.choice(OPPOSITES[kind].replace(":", " ").split()),
        }
    else:
        p |= {"verb": rng.choice(_words(VERBS[frame])), "subject": rng.choice(_nouns(LIVING, []))}
        p["manner"] = rng.choice(_words(MANNERS)) if rng.random() < 0.3 else None
        p["place"] = rng.choice(_words(PLACES, ",")) if rng.random() < 0.45 else None
    if frame in ROLES:
        p["object"] = rng.choice(_nouns(ROLES[frame], [p["subject"]]))
    if frame == "give":
        p["recipient"] = rng.choice(_nouns(LIVING, [p["subject"]]))
    for part in ("subject", "object"):
        if part in p:
            p[part + " adjective"] = (
                rng.choice(_adjectives(p[part])) if rng.random() < 0.35 else None
            )
    return p


def _to_sentence(p: Proposition) -> str:
    """Return the proposition as a sentence; "swapped" selects the passive, or "gave the book to her"."""
    subject, target, recipient = (
        ["the", p.get(part + " adjective"), p.get(part)] for part in NOUN_PARTS
    )
    negation, manner = "not" if p["negative"] else "", p.get("manner")
    past, participle, _ = _forms(p["verb"])
    words = [*subject, *(("did not", manner, p["verb"]) if negation else (manner, past))]
    if p["frame"] == "state":
        words = [*subject, "was", negation, p["verb"]]
    elif p["frame"] == "give":
        words += [*target, "to", *recipient] if p["swapped"] else recipient + target
    elif "object" in p:
        words = (
            [*target, "was", negation, manner, participle, "by", *subject]
            if p["swapped"]
            else words + target
        )
    return _join([*words, p.get("place")])


def _edits(rng: random.Random, p: Proposition) -> tuple[list[Proposition], list[Proposition]]:
    """Return the single changes of `p` that `p` entails, and those that it does not entail."""
    entailed: list[Proposition] = [
        {part: word}
        for part, value in p.items()
        for word in CONCEPT.get(value, ())
        if word != value
    ]
    not_entailed: list[Proposition] = [{"negative": not p["negative"]}]
    for part in (part for part in NOUN_PARTS if part in p):
        noun: str = p[part]
        adjective = f"{part} adjective"
        others = [p[other] for other in NOUN_PARTS if other in p and other != part]
        if noun in KIND and KIND[noun] in _nouns(
            (KIND[noun],), others
        ):  # "the animal" can only refer to this one
            entailed.append({part: KIND[noun]})
        same_kind = _words(NOUNS[KIND.get(noun, noun)])
        not_entailed.append(
            {
                part: rng.choice(
                    [w for w in same_kind if not any(_same(w, t) for t in (noun, *others))]
                )
            }
        )
        if adjective in p:
            entailed += [{adjective: None}] if p[adjective] else []
            not_entailed.append(
                {
                    adjective: rng.choice(
                        [w for w in _adjectives(noun) if not _same(w, p[adjective])]
                    )
                }
            )
    for part, words in (("place", _words(PLACES, ",")), ("manner", _words(MANNERS))):
        if part in p:
            removed, other = (
                {part: None},
                {part: rng.choice([w for w in words if not _same(w, p[part])])},
            )
            not_entailed += [other] if p[part] else []
            # what did not happen at all did not happen here; what did not happen here may have happened elsewhere
            (not_entailed if p["negative"] == bool(p[part]) else entailed).append(
                removed if p[part] else other
            )
    if p["frame"] == "state":
        entailed.append({"verb": OPPOSITE[p["verb"]], "negative": not p["negative"]})
        not_entailed.append({"verb": OPPOSITE[p["verb"]]})
    else:
        not_entailed.append(
            {"verb": rng.choice([w for w in _words(VERBS[p["frame"]]) if not _same(w, p["verb"])])}
        )
    if "object" in p:
        entailed += [{"swapped": not p["swapped"]}] * 2
    if p["frame"] == "living":  # the same words with exchanged roles
        not_entailed += [
            {
                "subject": p["object"],
                "object": p["subject"],
                "subject adjective": p["object adjective"],
                "object adjective": p["subject adjective"],
            }
        ] * 2
    return entailed, not_entailed


def _edit(rng: random.Random, p: Proposition, entailed_edits: int, other_edits: int) -> Proposition:
    """Return `p` after some entailed and some other edits, each of different parts (fewer if no part is left)."""
    entailed, not_entailed = _edits(rng, p)
    change: Proposition = {}
    for edits, count in ((not_entailed, other_edits), (entailed, entailed_edits)):
        for edit in rng.sample(edits, len(edits)):
            if count and not edit.keys() & change.keys():
                change |= edit
                count -= 1
    return p | change


def _score(p: Proposition, q: Proposition) -> float:
    """Return how far two propositions agree, from 0 (not at all) to 5 (completely)."""
    if p["frame"] == "state" and OPPOSITE[p["verb"]] == q["verb"]:  # "not awake" means "asleep"
        q = q | {"verb": p["verb"], "negative": not q["negative"]}
    total = agreed = 0.0
    for part, weight in WEIGHTS.items():
        first, second = p.get(part), q.get(part)
        total += weight if first or second else 0.0
        if first and second:
            near = KIND.get(first, first) == KIND.get(second, second) and part in NOUN_PARTS
            agreed += weight * (
                1.0
                if _same(first, second)
                else 0.0
                if not near
                else 0.6
                if _related(first, second)
                else 0.3
            )
    return 5.0 * agreed / total * (1.0 if p["negative"] == q["negative"] else 0.6)


def pairs(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield pairs for pretraining without end: a sentence and a paraphrase, which is often less exact."""
    while True:
        p = _proposition(rng)
        yield _to_sentence(p), _to_sentence(_edit(rng, p, rng.choice((1, 2, 3)), 0))


def _tags(p: Proposition, words: list[str]) -> list[str]:
    """Return the IOB2 tag of each word of the proposition's sentence: its part, whether active or passive."""
    tags = ["O"] * len(words)
    for part in (part for part in (*NOUN_PARTS, "place") if p.get(part)):
        phrase = f"the {p.get(part + ' adjective') or ''} {p[part]}".split()[
            0 if part in NOUN_PARTS else 1 :
        ]
        first = next(at for at in range(len(words)) if words[at : at + len(phrase)] == phrase)
        tags[first : first + len(phrase)] = [f"B-{part}", *[f"I-{part}"] * (len(phrase) - 1)]
    return tags


def _row(rng: random.Random, task: str, label: bool) -> list[str]:
    """Return a row of the task without its index; similarity, topics and roles ignore `label`."""
    p = _proposition(rng)
    if task == "Acceptability":
        return [
            "demo",
            str(int(label)),
            "" if label else "*",
            _sentence(rng, rng.choice(FAULTS), not label),
        ]
    if task == "Topics":
        nouns: list[str] = [p[part] for part in NOUN_PARTS if part in p]
        return [_to_sentence(p), "|".join(sorted({KIND.get(noun, noun) for noun in nouns}))]
    if task == "Roles":
        sentence = _to_sentence(p)
        return [sentence, " ".join(_tags(p, sentence.split()))]
    if task == "Entailment":
        q = _edit(
            rng, p, rng.choice((1, 2, 3)) if label else rng.choice((0, 1, 2)), 0 if label else 1
        )
        return [_to_sentence(p), _to_sentence(q), "entailment" if label else "not_entailment"]
    q = _edit(rng, p, rng.choice((0, 1, 2)), rng.choice((0, 1, 2, 3, 4, 5)))
    return [
        "demo",
        "demo",
        "2024",
        "0",
        "demo",
        "demo",
        _to_sentence(p),
        _to_sentence(q),
        f"{_score(p, q):.3f}",
    ]


def write(directory: Path, *, seed: int = 0) -> None:
    """Write the tasks' train.tsv (1,000 rows) and dev.tsv (200 rows), for Roles .conll, below `directory`.

    The bytes depend only on `seed`. Within a task no sentence or pair occurs twice.
    """
    rng = random.Random(seed)
    for task, header in HEADERS.items():
        seen: set[tuple[str, ...]] = set()
        for split, count in (("train", TRAIN_ROWS), ("dev", DEV_ROWS)):
            lines = [header.replace(" ", "\t")] if header else []
            for i, rank in enumerate(rng.sample(range(count), count)):
                row = _row(rng, task, rank < round(count * POSITIVE_FRACTION))
                while (
                    key := tuple(cell for cell in row if " " in cell)
                ) in seen:  # the sentences, not the label
                    row = _row(rng, task, rank < round(count * POSITIVE_FRACTION))
                seen.add(key)
                lines.append("\t".join([str(i), *row] if header else row))
                if task == "Roles":
                    lines[-1] = "".join(
                        f"{word}\t{tag}\n" for word, tag in zip(*map(str.split, row), strict=True)
                    )
            path = Path(directory, task, f"{split}{'.conll' if task == 'Roles' else '.tsv'}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes("".join(line + "\n" for line in lines).encode("utf-8"))


if __name__ == "__main__":
    write(Path(__file__).resolve().parents[1] / "configs" / "tasks" / "demo")
