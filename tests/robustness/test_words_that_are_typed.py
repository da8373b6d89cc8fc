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
        (["--backbone", "./encoder", *METHOD], "backbone ./encoder: there is no such directory"),
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


@pytest.mark.parametrize(
    ("method", "word", "message"),
    [
        ("lora", "settings.r=[[1]]", "command line: settings.r: must be a number, a text, true"),
        ("loha", "settings.options={bool: [[1]]}", "settings.options: bool must be a number"),
        ("loha", "settings.options.a.b.c=1", "settings.options: a.b is a mapping within 3 others"),
        ("loha", 'settings.options.rank_pattern={"layer.0.x": 4}', "behind its last point"),
        ("lora", "settings.r=.nan", "settings.r: must be a finite number"),
        ("lora", "settings.targets=[]", "settings.targets: names no module of the encoder"),
        ("lora", "settings.targets=[1,a]", "list of texts or of whole numbers, not [1, 'a']"),
        ("lora", "class_weights=foo", "class_weights: balanced | [float, ...] | null is required"),
        ("lora", "class_weights=[a]", "class_weights: balanced | [float, ...] | null is required"),
        ("loha", "settings.options.r=x", "settings.options.r: int is required, not 'x'"),
        ("loha", "settings.options.r=yes", "settings.options.r: int is required, not True"),
        ("peft", "settings.options.lora_alpa=8", "LoraConfig of peft has no 'lora_alpa'; did you"),
    ],
)
def test_a_value_of_another_type_names_its_key(hifi, method, word, message):
    answer = hifi("train", "--protocol", "demo", "--method", method, word, "--dry-run")
    assert answer.code == 2
    assert message in answer.err
    for of_a_library in (".bool:", "literal[", "unexpected keyword", "not supported between"):
        assert of_a_library not in answer.err
