"""Words in another case and misspelt keys: one line suggests the right one."""

import pytest

TABLE = "text,rude\n" + "".join(f"the dog {number},{number % 2}\n" for number in range(20))
METHOD = ["--protocol", "demo", "--method", "linear-probing"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "LoRA", "--protocol", "demo"], "unknown method 'LoRA'; did you mean 'lora'?"),
        (["--task", "RTE", *METHOD], "unknown task 'RTE'; did you mean 'rte'?"),
        (["--task", "SST-2", *METHOD], "unknown task 'SST-2'; did you mean 'sst2'?"),
        (["--backbone", "MiniLM", *METHOD], "unknown backbone 'MiniLM'; did you mean 'minilm'?"),
        (["--method", "lora", "--protocol", "DEMO"], "'DEMO'; did you mean 'demo'?"),
        ([*METHOD, "EPOCHS=1"], "unknown key 'EPOCHS'; did you mean 'epochs'?"),
        (["--task", "a.csv", *METHOD, "lables=[a,b]"], "'lables'; did you mean 'labels'?"),
        (["--task", "a.csv", *METHOD, "Label=rude"], "'Label'; did you mean 'label'?"),
        (["--task", "a.csv", *METHOD, "input=text"], "'input'; did you mean 'inputs'?"),
        (["--task", "a.csv", *METHOD, "label=Rude"], "no column 'Rude'; did you mean 'rude'?"),
        (
            ["--task", "a.csv", *METHOD, "label=rude", "learningrate=1"],
            "did you mean 'learning_rate'?",
        ),
        ([*METHOD, "labels=[a,b]"], "'labels=[a,b]' says how a data file or hub dataset is read"),
        ([*METHOD, "lables=[a,b]"], "unknown key 'lables'; did you mean 'labels'? It says how"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_the_right_word_is_suggested(hifi, tmp_path, words, message):
    (tmp_path / "a.csv").write_text(TABLE)
    answer = hifi("train", *words)
    assert answer.code == 2
    assert message in answer.err
    assert "report it" not in answer.err


@pytest.mark.parametrize("word", ["RTE", "Lora", "DEMO"])
def test_ls_suggests_it_too(hifi, word):
    answer = hifi("ls", word)
    assert answer.code == 2
    assert "did you mean" in answer.err
