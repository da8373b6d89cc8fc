"""The methods, tasks, families and settings whose steps tests record, on the CPU and on a GPU."""

from hifi_cli.config import registry

# Why the stages of a method are not recorded; empty for a stage that is. All others are recorded.
OBSTACLES = {
    "boft": ["adapters of type boft"],
    "fourierft": ["adapters of type fourierft"],
    "shira": ["adapters of type shira"],
    "waveft": ["adapters of type waveft"],
}
RECORDED_METHODS = [
    name for name in sorted(registry.names("methods")) if "" in OBSTACLES.get(name, [""])
]
# Tasks that are not plain classification.
TASKS_OF_KINDS = ("copa", "swag", "squad", "conll2003")
OTHER_FAMILIES = ("deberta-v2", "mpnet", "electra", "distilbert", "modernbert", "qwen3")
SETTINGS_OF_THE_LOSS = [
    ("class_weights=[1.0,3.0]",),
    ("class_weights=balanced", "label_smoothing=0.1"),
    ("layer_decay=0.8",),
    ("train_sampling_strategy=group_by_length",),
    ("padding_free=false",),
    ("task_head.kind=mlp", "task_head.one_logit=true"),
    ("gradient_accumulation_steps=2",),
    ("gradient_accumulation_steps=3", "class_weights=[1.0,3.0]"),
]
