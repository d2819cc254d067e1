"""``statedual generate``: what is shown is the text of ``generate``, whole characters, no stop strings."""

import inspect
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from statedual.cli import main
from statedual.commands import generate as command
from statedual.generation import generate
from statedual.layers import Mamba2Config
from statedual.models import LanguageModel, ModelConfig, load, save

Captured = pytest.CaptureFixture[str]
STATUS = r"\d+ tokens(, \d+\.\d tokens/s)?, after \d+ tokens read in \d+\.\d s\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint without a tokenizer."""
    return checkpoint(tmp_path / "model", seed=0)


def checkpoint(folder: Path, seed: int, vocab: int = 256) -> Path:
    torch.manual_seed(seed)
    blocks = (Mamba2Config(d_state=4, head_dim=8),)
    model = LanguageModel(ModelConfig(d_model=16, vocab_size=vocab, blocks=blocks, tie_embeddings=False))
    with torch.no_grad():
        model.embedding.weight.normal_()
        model.head.weight.normal_()
    save(model, folder)
    return folder


def tokenizer(folder: Path) -> Tokenizer:
    """One token a byte, beside the model."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({word: index for index, word in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    return made


def run(capsys: Captured, *arguments: object) -> tuple[str, str]:
    assert main(["generate", *map(str, arguments)]) == 0
    return capsys.readouterr()


def speak(monkeypatch: pytest.MonkeyPatch, *rows: list[int]) -> dict:
    """In place of what the model would say; returns what ``stream`` is asked."""
    asked: dict = {}

    def stream(_: LanguageModel, prompts: list, **arguments: object) -> Iterator[tuple[int, int]]:
        asked.update(arguments, prompts=prompts)
        for step in range(max(len(row) for row in rows)):
            for index, row in enumerate(rows):
                if step < len(row):
                    yield index, row[step]

    monkeypatch.setattr(command, "stream", stream)
    return asked


def test_ids_without_a_tokenizer(folder: Path, capsys: Captured) -> None:
    (row,) = generate(load(folder), [[5, 8]], max_new_tokens=6)
    shown, told = run(capsys, "--model", folder, "--prompt-ids", "5 8", "--max-new-tokens", 6)
    assert shown.split() == [str(token) for token in row.tokens]
    assert shown.endswith("\n")
    assert re.fullmatch(STATUS, told)
    assert told.startswith("6 tokens, ")
    assert "after 2 tokens read" in told


def test_text_with_a_tokenizer(folder: Path, capsys: Captured) -> None:
    made = tokenizer(folder)
    (row,) = generate(load(folder), [made.encode("für").ids], max_new_tokens=40)
    for given in (("--prompt", "für"), ("--prompt-ids", " ".join(map(str, made.encode("für").ids)))):
        shown, _ = run(capsys, "--model", folder, *given, "--max-new-tokens", 40)
        assert shown == made.decode(row.tokens) + "\n"


def test_every_setting_reaches_the_model(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    draft = checkpoint(tmp_path / "draft", seed=1)
    flags = ["--max-new-tokens", 9, "--temperature", 1.5, "--top-k", 99, "--top-p", 0.9, "--min-p", 0.001]
    flags += ["--repetition-penalty", 1.3, "--seed", 7, "--dtype", "float64", "--draft", draft]
    shown, _ = run(capsys, "--model", folder, "--prompt-ids", "5 8", *flags)
    settings = {"temperature": 1.5, "top_k": 99, "top_p": 0.9, "min_p": 0.001, "repetition_penalty": 1.3, "seed": 7}
    model, helper = (load(path, dtype=torch.float64) for path in (folder, draft))
    (row,) = generate(model, [[5, 8]], max_new_tokens=9, draft=helper, **settings)
    assert shown.split() == [str(token) for token in row.tokens]


def test_defaults_are_those_of_generate(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = speak(monkeypatch, [1])
    run(capsys, "--model", folder, "--prompt-ids", "5")
    known = {name: parameter.default for name, parameter in inspect.signature(generate).parameters.items()}
    assert asked.pop("prompts") == [[5]]
    assert asked.pop("max_new_tokens") == 100
    assert callable(asked.pop("progress"))
    assert asked == {name: known[name] for name in asked}


def test_text_comes_in_whole_characters_as_it_is_written(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tokenizer(folder).encode("aü日b").ids
    seen: list[str] = []

    def stream(*_: object, **__: object) -> Iterator[tuple[int, int]]:
        for token in ids:
            yield 0, token
            seen.append(capsys.readouterr().out)

    monkeypatch.setattr(command, "stream", stream)
    shown, _ = run(capsys, "--model", folder, "--prompt", "x")
    assert seen == ["a", "", "ü", "", "", "日", "b"]
    assert shown == "\n"


def test_stop_strings_are_not_shown(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokenizer(folder)
    for text, stops, shown in (
        ("one EN END", ["END"], "one EN "),
        ("one EN", ["END"], "one EN"),
        ("one\n\n", ["END", "\n\n"], "one"),
    ):
        asked = speak(monkeypatch, made.encode(text).ids)
        flags = [flag for stop in stops for flag in ("--stop", stop)]
        assert run(capsys, "--model", folder, "--prompt", "x", *flags)[0] == shown + "\n"
        assert list(asked["stop"]) == stops
        assert asked["tokenizer"].decode(made.encode(text).ids) == text


def test_what_is_broken_at_the_end_is_shown_as_such(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(monkeypatch, tokenizer(folder).encode("日").ids[:2])
    assert run(capsys, "--model", folder, "--prompt", "x")[0] == "\ufffd\n"


def test_several_prompts_are_shown_whole_with_heads(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tokenizer(folder)
    asked = speak(monkeypatch, made.encode("one, END").ids, made.encode("two").ids)
    shown, told = run(capsys, "--model", folder, "--prompt", "first", "--prompt", "second", "--stop", "END")
    assert shown == "=== first\none, \n=== second\ntwo\n"
    assert told.startswith("11 tokens")
    assert asked["prompts"] == [made.encode("first").ids, made.encode("second").ids]
    speak(monkeypatch, [1, 2], [3])
    assert run(capsys, "--model", folder, "--prompt-ids", "5 8", "--prompt-ids", "7")[0].startswith("=== 5 8\n")


def test_standard_input(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokenizer(folder)
    asked = speak(monkeypatch, [1])
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))  # as `echo` ends them
    run(capsys, "--model", folder, "--prompt", "-")
    assert asked["prompts"] == [made.encode("two\nlines").ids]


@pytest.mark.parametrize("eos", ["one", "several"])
def test_text_ends_where_the_checkpoint_says(folder: Path, capsys: Captured, eos: str) -> None:
    (row,) = generate(load(folder), [[5, 8]], max_new_tokens=20, temperature=1.0, seed=0)
    end = row.tokens[4]
    given = json.dumps({"eos_token_id": end if eos == "one" else [end, row.tokens[6]]})
    (folder / "generation_config.json").write_text(given)
    flags = ["--max-new-tokens", 20, "--temperature", 1.0, "--seed", 0]
    shown, _ = run(capsys, "--model", folder, "--prompt-ids", "5 8", *flags)
    assert shown.split() == [str(token) for token in row.tokens[: row.tokens.index(end) + 1]]


@pytest.mark.parametrize(("length", "bar"), [(9, True), (8, False)])
def test_long_prompts_show_how_far_they_are_read(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, length: int, bar: bool
) -> None:
    monkeypatch.setattr(command, "BLOCK", 8)
    flags = ["--model", folder, "--prompt-ids", " ".join(["7"] * length), "--max-new-tokens", 2]
    assert re.fullmatch(STATUS, run(capsys, *flags)[1])  # no bar where nobody looks
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, to rich
    shown, told = run(capsys, *flags)
    assert ("reading" in told and f"{length}/{length}" in told) == bar
    assert len(shown.split()) == 2


def test_no_new_tokens(folder: Path, capsys: Captured) -> None:
    shown, told = run(capsys, "--model", folder, "--prompt-ids", "5", "--max-new-tokens", 0)
    assert shown == "\n"
    assert told.startswith("0 tokens, after 1 tokens read in")


def test_interrupted(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(*_: object, **__: object) -> Iterator[tuple[int, int]]:
        yield 0, 1
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "stream", stream)
    assert main(["generate", "--model", str(folder), "--prompt-ids", "5"]) == 130
    assert capsys.readouterr() == ("1 ", "statedual: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--prompt", "text"], 'tokenizer.json does not exist, expected it for text; --prompt-ids "1 2 3"'),
        (["--prompt-ids", "1", "--stop", "x"], "tokenizer.json does not exist, expected it for text"),
        ([], "expected either --prompt or --prompt-ids"),
        (["--prompt-ids", "1 x"], "--prompt-ids: invalid literal"),
        (["--prompt-ids", ""], "prompts[0] is empty"),
        (["--prompt-ids", "1", "--prompt-ids", "999"], "prompts[1] has id 999 at position 0"),
        (["--prompt-ids", "1", "--temperature", "-1"], "temperature is -1.0"),
        (["--prompt-ids", "1", "--max-new-tokens", "-1"], "max_new_tokens is -1"),
        (["--prompt-ids", "1", "--draft", "nowhere"], "nowhere does not exist"),
    ],
)
def test_bad_arguments_end_in_a_message(folder: Path, capsys: Captured, arguments: list[str], told: str) -> None:
    assert main(["generate", "--model", str(folder), *arguments]) == 2
    shown, said = capsys.readouterr()
    assert shown == ""
    assert said.startswith("statedual: ")
    assert told in said


def test_bad_files_and_bad_mixtures(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    def fails(*arguments: object) -> str:
        assert main(["generate", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    assert "nowhere does not exist" in fails("--model", tmp_path / "nowhere", "--prompt-ids", "1")
    other = checkpoint(tmp_path / "other", seed=1, vocab=77)
    said = fails("--model", folder, "--prompt-ids", "1", "--draft", other)
    assert "draft has vocab_size 77, expected 256" in said
    tokenizer(folder)
    assert "either --prompt or --prompt-ids" in fails("--model", folder, "--prompt", "a", "--prompt-ids", "1")
    assert "--prompt - was given twice" in fails("--model", folder, "--prompt", "-", "--prompt", "-")
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json is no tokenizer that" in fails("--model", folder, "--prompt", "a")


def test_bytes_that_are_no_text_are_told(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer(folder)
    assert main(["generate", "--model", str(folder), "--prompt", "a\udcffb"]) == 2
    assert "prompt 0 is not UTF-8, expected text" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xffb"), encoding="utf-8"))
    assert main(["generate", "--model", str(folder), "--prompt", "-"]) == 2
    assert "standard input is not UTF-8" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", None)
    assert main(["generate", "--model", str(folder), "--prompt", "-"]) == 2
    assert "standard input, which is closed" in capsys.readouterr().err


def test_a_reader_who_has_seen_enough_ends_it_quietly(folder: Path) -> None:
    """As in ``statedual generate ... | head -c 20``."""
    arguments = ["generate", "--model", str(folder), "--prompt-ids", "1 2", "--max-new-tokens", "20000"]
    with subprocess.Popen(
        [sys.executable, "-m", "statedual", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(20)
        process.stdout.close()
        told = process.stderr.read()
        assert process.wait(60) == 141
    assert told == b""
