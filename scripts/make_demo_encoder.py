"""Pretrain the demo encoder: a small BERT, by masked language modeling on sentences of the demo grammar.

    python scripts/make_demo_encoder.py configs/backbones/demo

The corpus is unlabelled text from make_demo_data: single correct sentences, and pairs of a sentence and a
paraphrase, from which the encoder learns to attend across the [SEP]. In addition to masked language modeling it learns
to detect random damage of that text: words replaced, dropped, added or exchanged, and pairs in the wrong order. No row
and no label of the tasks' files is used.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import make_demo_data as demo_data
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MAX_LENGTH = 128
MASKED = 0.2  # more than BERT's 15 %, because the sentences are short
PAIR_STEPS = (
    0.7  # fraction of the steps with pairs, which take much longer to learn than single sentences
)
IGNORED = -100


def corpus(rng: random.Random, *, pairs: bool) -> Iterator[tuple[str, ...]]:
    """Yield texts of one sentence, or of two related sentences, without end."""
    if pairs:
        yield from demo_data.pairs(rng)
    else:
        for sentence in demo_data.sentences(rng):
            yield (sentence,)


def make_tokenizer(seed: int) -> BertTokenizerFast:
    """A lower-case WordPiece tokenizer: the grammar's words, and the letters for any other word."""
    rng, counts = random.Random(seed), Counter()
    for pairs in (False, True):
        texts = corpus(rng, pairs=pairs)
        for _ in range(20000):
            counts.update(word for sentence in next(texts) for word in sentence.split())
    words = sorted(counts, key=lambda word: (-counts[word], word))
    entries = SPECIAL + words
    entries += [
        piece for letter in LETTERS for piece in (letter, "##" + letter) if piece not in counts
    ]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return BertTokenizerFast(
        tokenizer_object=tokenizer,
        do_lower_case=True,
        model_max_length=MAX_LENGTH,
        unk_token="[UNK]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        mask_token="[MASK]",
    )


class Damage:
    """Damages texts for the model to mend, with words that suit the place: random ones would be too easy to spot.

    A text of ids becomes, per token, its id, the id to predict there, and whether the token is out of place. Of a
    pair only the second sentence suffers, so that what is wrong with it is often just that the first says otherwise.
    """

    def __init__(self, tokenizer: BertTokenizerFast, seed: int) -> None:
        self.special, self.mask_id = set(tokenizer.all_special_ids), tokenizer.mask_token_id
        self.separator, self.rng = tokenizer.sep_token_id, random.Random(seed)
        self.seen: dict[tuple[int | None, int | None], list[int]] = defaultdict(
            list
        )  # neighbours -> words there
        for pairs in (False, True):
            texts = corpus(self.rng, pairs=pairs)
            for _ in range(5000):
                ids = tokenizer(*next(texts))["input_ids"]
                for before, word, after in zip(ids, ids[1:], ids[2:], strict=False):
                    if word not in self.special:
                        for place in ((before, None), (None, after), (before, after)):
                            self.seen[place].append(word)

    def another(self, ids: list[int], at: int, *, pair: bool) -> int:
        """A word that has been seen in such a place: beside one of the neighbours, in pairs mostly between both."""
        places = [(ids[at - 1], None), (None, ids[at + 1])]
        places += [(ids[at - 1], ids[at + 1])] * (4 if pair else 0)
        return self.rng.choice(self.seen.get(self.rng.choice(places)) or [ids[at]])

    def __call__(self, ids: list[int], *, harm: bool) -> list[tuple[int, int, int]]:
        rng, shown, pair = self.rng, list(ids), ids.count(self.separator) == 2
        start = ids.index(self.separator) + 1 if pair else 1
        rate = rng.choice((0.05, 0.08, 0.12)) if harm else 0.0
        if (
            harm and rng.random() < 0.3
        ):  # two words change places, two after the same word if there are such
            first = rng.randrange(start, len(ids) - 1)
            places = [at for at in range(start, len(ids) - 1) if ids[at] != ids[first]]
            places = [at for at in places if ids[at - 1] == ids[first - 1]] or places
            other = rng.choice(places)
            shown[first], shown[other] = shown[other], shown[first]
            rate = 0.0
        masked = rng.random() < 0.7  # whatever the damage, so that a [MASK] tells nothing of it
        text, gap = [], False  # gap: the word before this one is missing
        for at, (token, original) in enumerate(zip(shown, ids, strict=True)):
            chance = rng.random() if at >= start and token not in self.special else 1.0
            if chance < 0.3 * rate:  # drop the word, put one before it, or put another in its stead
                gap = True
                continue
            if chance < 0.6 * rate:
                text.append((rng.choice(self.seen[ids[at - 1], None]), IGNORED, 1))
            elif chance < 1.5 * rate:
                token = self.another(ids, at, pair=pair)
            text.append(
                (token, original if token != original else IGNORED, int(gap or token != original))
            )
            gap = False
        for at, (token, target, changed) in enumerate(text):
            if (
                masked
                and rng.random() < MASKED
                and token not in self.special
                and (target != IGNORED or not changed)
            ):
                text[at] = (self.mask_id, target if target != IGNORED else token, IGNORED)
        return text


def pretrain(
    tokenizer: BertTokenizerFast, *, steps: int, batch: int, rate: float, seed: int
) -> BertForMaskedLM:
    """Pretrain from scratch, with a line of progress every 200 steps.

    Besides the hidden words the model says which of the others are out of place, and its [CLS] whether anything is:
    "loss" and "accuracy" are those of the hidden words, "found" is the fraction of the damaged words that it detects,
    "judged" the fraction of the texts that its [CLS] classifies correctly.
    """
    torch.manual_seed(seed)
    rng, damage = random.Random(seed + 1), Damage(tokenizer, seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=512,
        max_position_embeddings=MAX_LENGTH,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = BertForMaskedLM(
        config
    ).eval()  # eval: a model this small underfits endless text, dropout would only hurt
    detector, judge = torch.nn.Linear(config.hidden_size, 1), torch.nn.Linear(config.hidden_size, 1)
    parameters = [*model.parameters(), *detector.parameters(), *judge.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))
    )
    texts = {pairs: corpus(rng, pairs=pairs) for pairs in (False, True)}
    totals, start = {False: Counter(), True: Counter()}, time.monotonic()
    for step in range(1, steps + 1):
        pairs = rng.random() < PAIR_STEPS
        reverse = torch.tensor([pairs and rng.random() < 0.15 for _ in range(batch)])
        rows = [next(texts[pairs])[:: -1 if back else 1] for back in reverse]
        rows = tokenizer(*map(list, zip(*rows, strict=True)))["input_ids"]
        rows = [
            damage(row, harm=not back and rng.random() < 0.5)
            for row, back in zip(rows, reverse, strict=True)
        ]
        length = max(map(len, rows))
        padding = (tokenizer.pad_token_id, IGNORED, IGNORED)
        ids, targets, changed = torch.tensor(
            [row + [padding] * (length - len(row)) for row in rows]
        ).unbind(-1)
        changed[reverse] = IGNORED
        separators = (ids == tokenizer.sep_token_id).long()
        types = ((separators.cumsum(1) - separators) > 0).long()
        present = (ids != tokenizer.pad_token_id).long()
        hidden = model.bert(
            input_ids=ids, token_type_ids=types * present, attention_mask=present
        ).last_hidden_state
        logits, targets_at_mask = model.cls(hidden[targets != IGNORED]), targets[targets != IGNORED]
        suspicion, wrong = (
            detector(hidden[changed != IGNORED])[:, 0],
            changed[changed != IGNORED].float(),
        )
        verdict, any_wrong = judge(hidden[:, 0])[:, 0], ((changed == 1).any(1) | reverse).float()
        loss = functional.cross_entropy(logits, targets_at_mask)
        damage_loss = functional.binary_cross_entropy_with_logits(suspicion, wrong)
        text_loss = functional.binary_cross_entropy_with_logits(verdict, any_wrong)
        optimizer.zero_grad()
        (
            loss + 3.0 * damage_loss + 0.5 * text_loss
        ).backward()  # few words are out of place, hence the 3
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        totals[pairs].update(
            {
                "texts": len(rows),
                "words": len(targets_at_mask),
                "loss": loss.item() * len(targets_at_mask),
                "right": int((logits.argmax(-1) == targets_at_mask).sum()),
                "found": int((suspicion[wrong == 1] > 0).sum()),
                "wrong": int(wrong.sum()),
                "judged": int(((verdict > 0) == (any_wrong == 1)).sum()),
            }
        )
        if step % 200 == 0 or step == steps:
            parts = [
                f"{name} loss {t['loss'] / max(1, t['words']):.3f} accuracy {t['right'] / max(1, t['words']):.3f} "
                f"found {t['found'] / max(1, t['wrong']):.3f} judged {t['judged'] / max(1, t['texts']):.3f}"
                for name, t in (("single:", totals[False]), ("pair:", totals[True]))
            ]
            print(
                f"step {step}/{steps}  {'  '.join(parts)}  {time.monotonic() - start:.0f} s",
                flush=True,
            )
            totals = {False: Counter(), True: Counter()}
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Pretrain the demo encoder and write it to a directory."
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = make_tokenizer(arguments.seed)
    print(f"{len(tokenizer)} tokens in the vocabulary", flush=True)
    model = pretrain(
        tokenizer,
        steps=arguments.steps,
        batch=arguments.batch,
        rate=arguments.rate,
        seed=arguments.seed,
    )
    model.bert.save_pretrained(arguments.directory)
    tokenizer.save_pretrained(arguments.directory)
    for path in sorted(arguments.directory.iterdir()):
        path.chmod(0o644)  # the weights would be readable by their owner alone
        print(f"{path.stat().st_size:>9,} bytes  {path.name}")


if __name__ == "__main__":
    main()
