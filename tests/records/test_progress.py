"""How far an unfinished run is, by its metrics.jsonl while it is written."""

from hifi_cli.records.progress import ProgressReader

STEP = '{{"step": {step}, "loss": {loss}, "learning_rate": 1e-4}}\n'
EPOCH = '{{"epoch": {epoch}, "accuracy": {score}}}\n'


def append(path, *texts):
    with path.open("a") as file:
        file.writelines(texts)


def test_each_look_reads_what_is_new_and_leaves_half_a_line_for_the_next(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    reader = ProgressReader(metrics)
    assert reader.read() is None, "there is no file yet"
    append(metrics, STEP.format(step=10, loss=0.75), "no line of ours\n", '{"step": 20, "lo')
    first = reader.read()
    assert (first.epoch, first.step, first.loss, first.steps_per_epoch) == (0, 10, 0.75, None)
    append(metrics, 'ss": 0.5, "learning_rate": 1e-4}\n', EPOCH.format(epoch=1, score=0.625))
    second = reader.read()
    assert (second.epoch, second.step, second.loss, second.steps_per_epoch) == (1, 20, 0.5, 20)
    assert second.describe(3, "accuracy") == "epoch 1 of 3, accuracy 62.50, loss 0.5000"
    assert first.describe(3, "accuracy") == "epoch 0 of 3, loss 0.7500"


def test_another_file_is_that_of_another_process_and_is_read_from_its_begin(tmp_path):
    metrics, other = tmp_path / "metrics.jsonl", tmp_path / "new"
    append(metrics, STEP.format(step=90, loss=0.1), EPOCH.format(epoch=1, score=0.5))
    reader = ProgressReader(metrics)
    before = reader.read()
    append(other, STEP.format(step=10, loss=0.7), STEP.format(step=20, loss=0.6))
    other.replace(metrics)
    after = reader.read()
    assert (before.step, after.step, after.epoch) == (90, 20, 0)
    assert before.file_number != after.file_number


def test_the_selecting_score_is_named(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    append(metrics, '{"epoch": 2, "selection": 0.5}\n')
    said = ProgressReader(metrics).read().describe(4, "f1")
    assert said == "epoch 2 of 4, f1 on the selection split 50.00"
