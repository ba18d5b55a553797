"""Steps of GPU probes about speculative decoding, on a stand-in engine with a model runner whose rows move."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.validation.gpu import drafting, pacing, traffic
from tests.validation.gpu.induction import PERIOD, repeated
from tests.validation.gpu.traffic import Answer, Ask, Tail

Facts = Callable[[], list[dict[str, Any]]]


class Batch:
    """Rows with the requests' names, and the counts that the last step left in the order of its rows."""

    def __init__(self) -> None:
        self.req_ids: list[str] = []
        self.num_accepted_tokens_cpu: Any = Row([])


class Row(list[int]):
    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return Row(found) if isinstance(key, slice) else found

    def tolist(self) -> list[int]:
        return list(self)


class Sampler:
    def sample(self, logits: list[int], _: Any) -> tuple[list[int], None]:
        return list(logits), None


class Runner:
    """Accepts 1, 2, 3, 1, ... tokens for a request in its steps; `right`: reads each request's own count."""

    def __init__(self, *, right: bool) -> None:
        self.right = right
        self.input_batch = Batch()
        self.requests: dict[str, Any] = {}
        self.num_accepted_tokens = SimpleNamespace(np=Row([]))
        self.sampler = Sampler()

    def _update_states(self, names: list[str]) -> None:
        batch = self.input_batch
        left = dict(zip(batch.req_ids, batch.num_accepted_tokens_cpu, strict=True))
        self.gathered = [left.get(name, 1) for name in names]
        batch.req_ids = names

    def _prepare_inputs(self) -> None:
        self.num_accepted_tokens.np = Row(self.gathered if self.right else sorted(self.gathered))

    def _update_states_after_model_execute(self, counts: list[int]) -> None:
        self.input_batch.num_accepted_tokens_cpu = Row(counts)


class Engine:
    """Answers each request with the tokens 1, 2, 3, ..., of which it accepts up to three a step."""

    vllm_config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=16, mamba_cache_mode="align"),
        scheduler_config=SimpleNamespace(async_scheduling=True),
        compilation_config=SimpleNamespace(cudagraph_mode="NONE", cudagraph_capture_sizes=None),
    )

    def __init__(self, *, right: bool) -> None:
        self.runner = Runner(right=right)
        self.asked: dict[str, tuple[list[int], int]] = {}
        worker = SimpleNamespace(worker=SimpleNamespace(model_runner=self.runner))
        executor = SimpleNamespace(driver_worker=worker)
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(model_executor=executor))
        self.steps = 0

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> None:
        self.asked[name] = (prompt["prompt_token_ids"], params.max_tokens)
        self.runner.requests[name] = SimpleNamespace(output_token_ids=[])

    def step(self) -> list[Any]:
        self.steps += 1
        names = sorted(self.asked, key=lambda name: hash((name, self.steps // 4)))
        self.runner._update_states(names)
        self.runner._prepare_inputs()
        counts, done = [], []
        for row, name in enumerate(names):
            prompt, wanted = self.asked[name]
            ids = self.runner.requests[name].output_token_ids
            counts.append(1 + (self.steps + row) % 3)
            for _ in range(counts[-1] if "sample" not in vars(self.runner.sampler) else 1):
                sampled, _ = self.runner.sampler.sample([len(ids) + 1] * len(names), None)
                ids.append(sampled[row])
            if len(ids) >= wanted:
                done.append(self._output(name, prompt, ids[:wanted]))
        self.runner._update_states_after_model_execute(counts)
        for out in done:
            del self.asked[out.request_id]
        return done

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self.asked.pop(name, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.asked)

    def _output(self, name: str, prompt: list[int], ids: list[int]) -> Any:
        rows = [{token: SimpleNamespace(logprob=-float(token))} for token in ids]
        out = SimpleNamespace(token_ids=ids, logprobs=rows)
        return SimpleNamespace(request_id=name, finished=True, outputs=[out], num_cached_tokens=len(prompt) // 16 * 16)


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the parts of vLLM and torch that the steps import."""
    package, params, torch = ModuleType("vllm"), ModuleType("vllm.sampling_params"), ModuleType("torch")
    package.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    params.RequestOutputKind = SimpleNamespace(FINAL_ONLY=2)  # type: ignore[attr-defined]
    torch.cuda = SimpleNamespace(synchronize=lambda: None)  # type: ignore[attr-defined]
    for name, module in (("vllm", package), ("vllm.sampling_params", params), ("torch", torch)):
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def facts(capsys: pytest.CaptureFixture[str]) -> Facts:
    """`facts()`: what steps printed since the last call."""
    return lambda: [json.loads(line[2:]) for line in capsys.readouterr().out.splitlines()]


def engine(*, right: bool = True) -> Any:
    return SimpleNamespace(llm_engine=Engine(right=right))


def test_the_engines_facts(facts: Facts) -> None:
    drafting.STEPS["engine"](engine(), (), {})
    (said,) = facts()

    assert said["runner"].endswith(".Runner")
    assert (said["asynchronous"], said["graphs"], said["sizes"], said["mamba"]) == (True, "NONE", [], "align")


@pytest.mark.parametrize("step", ["counts", "counts early"])
@pytest.mark.parametrize("right", [True, False])
def test_counts_by_request(facts: Facts, step: str, *, right: bool) -> None:
    drafting.STEPS[step](engine(right=right), (200,), {})
    (said,) = facts()

    assert said["steps"] >= 200
    assert said["rows"] > 5 * said["steps"]
    assert (said["mismatches"] == 0) is right
    assert (said["wrong_steps"] == 0) is right
    assert set(said["accepted"]) == {"1", "2", "3"}
    assert all(sorted(one["got"]) == sorted(one["left"]) for one in said["examples"])


def test_counts_that_arrive_asynchronously_are_copied(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = engine()
    runner = llm.llm_engine.runner
    context = SimpleNamespace(num_accepted_tokens_out=Row([]))
    monkeypatch.setattr(runner, "_get_mamba_bufs", lambda: SimpleNamespace(postprocess_align=context), raising=False)
    monkeypatch.setattr(
        "tests.validation.gpu.counting._copy", lambda row: (row, SimpleNamespace(synchronize=len_of(row)))
    )
    original = runner._update_states_after_model_execute

    def leave(counts: list[int]) -> None:
        original(counts)
        context.num_accepted_tokens_out = Row([*counts, 9, 9])

    runner._update_states_after_model_execute = leave
    drafting.counts(llm, (50,), {})

    assert facts()[0]["mismatches"] == 0


def len_of(row: Row) -> Callable[[], int]:
    return lambda: len(row)


def test_a_conversation_crosses_a_block_in_its_first_answer(facts: Facts, tmp_path: Path) -> None:
    drafting.converse(engine(), (2,), {"save": str(tmp_path / "a")})
    first, second, *_ = Tail(tmp_path / "a.answers").fresh()

    assert (len(first.prompt), len(first.prompt + first.ids)) == (24, 35)
    assert second.prompt[:35] == first.prompt + first.ids
    assert (len(second.prompt), len(second.ids), second.part) == (51, 96, "second")
    assert facts()[0] == {"conversation": 0, "block": 16, "prompt": 51, "cached": 48}


def test_a_replay_forces_the_tokens_and_compares(facts: Facts, tmp_path: Path) -> None:
    drafting.answer(engine(), (16, 20), {"save": str(tmp_path / "a")})
    file = tmp_path / "a.answers"
    for one in (Answer("x", "second", (1, 2), (5, 7), (-5.5, -7.0)), Answer("x", "4", (1,), (9,), (-6.0,))):
        traffic.append(file, one)
    file.with_suffix(".ended").touch()
    spec = {"save": str(tmp_path / "b"), "of": {"mtp, stock": str(file)}, "limit_s": 1e6}
    drafting.replay(engine(), (), spec)
    answered, plain, second = facts()

    assert answered == {"answers": 2, "asked": 2}
    assert (plain["replayed"], plain["part"], plain["requests"], plain["tokens"]) == ("mtp, stock", "answer", 3, 193)
    assert (plain["max"], plain["left"]) == (3.0, 0)
    assert (second["part"], second["mean"], second["bias"], second["p99"]) == ("second", 0.25, -0.25, 0.5)
    assert {one.ids for one in Tail(tmp_path / "b.answers").fresh()} >= {(5, 7), (9,)}


def test_a_replay_stops_before_it_is_stopped(facts: Facts, tmp_path: Path) -> None:
    file = tmp_path / "a.answers"
    traffic.append(file, Answer("x", "", (1,), (5,), (-5.0,)))
    drafting.replay(engine(), (), {"save": str(tmp_path / "b"), "of": {"one": str(file)}, "limit_s": 0})

    assert facts() == []


def test_the_tail_of_a_file_that_grows(tmp_path: Path) -> None:
    file = tmp_path / "a.answers"
    tail = Tail(file)
    assert tail.fresh() == []
    one = Answer("x", "", (1,), (5,), (-5.0,), 3)
    traffic.append(file, one)
    with file.open("a") as stream:
        stream.write('{"name"')

    assert (tail.fresh(), tail.fresh(), tail.ended) == ([one], [], False)


def test_clients_go_on_from_what_was_said(facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def passing() -> float:
        now[0] += 0.01
        return now[0]

    monkeypatch.setattr(time, "time", passing)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    drafting.soak(engine(), (20, 8), {"save": str(tmp_path / "a")})
    (said,) = facts()
    answers = Tail(tmp_path / "a.answers").fresh()
    texts = {one.prompt + one.ids for one in answers}

    assert said["asked"] == said["answers"] == len(answers) > 20
    assert said["tokens"] == sum(len(one.ids) for one in answers)
    assert 1 < said["most_at_once"] <= 8
    assert sum(any(one.prompt[: len(text)] == text for text in texts) for one in answers) > len(answers) // 4


def test_a_repetition_is_judged_by_its_pattern(facts: Facts) -> None:
    drafting.repeat(engine(), (2000,), {})
    said = facts()

    assert [one["repetition"] for one in said] == ["beside 0", "beside 1", "beside 2", "beside 3", "alone"][-1:] + [
        f"beside {i}" for i in range(4)
    ]
    assert {one["digest"] for one in said} == {said[0]["digest"]}
    assert (said[0]["ids"], said[0]["first_wrong"], said[0]["begins"]) == (200, 0, [1, 2, 3, 4, 5, 6, 7, 8])


def test_a_repeated_text_has_places_where_drafts_fail() -> None:
    text, pattern = repeated(2000)
    blocks = [text[i : i + PERIOD] for i in range(0, 2000, PERIOD)]

    assert [i for i, block in enumerate(blocks) if block != pattern] == [0, 37, 38]
    assert len(set(pattern)) == PERIOD


def test_engines_measure_in_turn(facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_measure", lambda _, __, ___, number: (10.0 + number, 20.0 + number))
    saves = [tmp_path / name for name in ("a", "b", "c")]
    saves[1].with_suffix(".ended").touch()  # it did not start
    saves[2].with_suffix(".ready").touch()
    saves[2].with_suffix(".ended").touch()  # it died later
    pacing.turns(engine(), (4, 64, 2), {"save": str(saves[0]), "turns": [str(one) for one in saves]})

    (said,) = facts()
    assert (said["prefill_per_s"], said["decode_per_s"]) == ([11.0, 12.0], [21.0, 22.0])
    assert saves[0].with_suffix(".taken").read_text() == "3"


def test_an_engine_waits_for_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "PATIENCE_S", 0.01)
    first, second = tmp_path / "a", tmp_path / "b"
    first.with_suffix(".ready").touch()
    turns = pacing.ours(second, [first, second], 2)

    with pytest.raises(TimeoutError, match="other engines' turns"):
        next(turns)
    first.with_suffix(".taken").write_text("1")
    assert next(pacing.ours(second, [first, second], 2)) == 0


def test_requests_come_in_turn() -> None:
    feed = traffic.in_turn([Ask(f"r{i}", (1,), 1) for i in range(3)], at_once=2)

    assert [[ask.name for ask in feed(flying, ())] for flying in (0, 1, 1, 1, 2, 2, 2, 1, 1, 1)] == [
        *(["r0"], [], [], ["r1"], [], [], [], [], [], ["r2"])
    ]


def test_prefill_and_decoding_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = engine()
    steps = [0]

    def step() -> list[Any]:
        steps[0] += 1
        time.sleep(0.001)
        return [SimpleNamespace(request_id=name) for name in list(llm.llm_engine.asked)[: steps[0]]]

    monkeypatch.setattr(llm.llm_engine, "step", step)
    prefill, decode = pacing._measure(llm, 4, 64, 0)

    assert steps[0] == 4 + pacing.STEPS
    assert 0 < decode < 4 / 0.001
    assert 0 < prefill < 4 * 64 / 0.004
    assert not llm.llm_engine.asked
