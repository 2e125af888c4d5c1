from __future__ import annotations

import asyncio
import copy
import itertools
import random  # noqa: TID251  # seeded
import re
from datetime import UTC, datetime, timedelta
from math import inf

import pytest
from structlog.testing import capture_logs

from admission.kube.client import ApiError, Conflict, Fenced, NotFound, Unavailable
from admission.kube.lease import SETTLE_S, LeaderElector, LeadershipLost
from tests.kube.virtual import virtually

WRITE_TIMEOUT = 10.0


class Books:
    """The Lease as an API server keeps it."""

    def __init__(self) -> None:
        self.lease: dict | None = None
        self.revision = 0
        self.history: list[dict] = []

    def store(self, body: dict) -> dict:
        self.revision += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.revision)
        self.history.append(self.lease["spec"])
        return copy.deepcopy(self.lease)


class Machine:
    """A process on a machine of its own: its clocks may be off, its network may fail, and it may freeze."""

    def __init__(
        self, books: Books, *, name: str, offset: float = 0.0, rate: float = 1.0, wall: float = 0.0, **times: float
    ) -> None:
        self.books = books
        self.write_timeout = WRITE_TIMEOUT
        self.awake = asyncio.Event()
        self.awake.set()
        self.reachable = True
        self.stood_still = 0.0
        """For so long its clock did, too: its hypervisor had stopped it."""
        self.lose_reply = False
        self.answered_after = 0.01
        self.under_way = 0.0
        """For so long a write would go on that the server has not answered yet."""
        self.doubtful = 0.0
        self.calls: list[str] = []
        self.cut_off_at: float | None = None
        """Since when it has had no news; infinite: it never had any."""
        loop = asyncio.get_running_loop()
        self.elector = LeaderElector(
            self,
            "muster",
            "controller",
            identity=name,
            **times,
            clock=lambda: (loop.time() - self.stood_still) * rate + offset,
            wall=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=loop.time() + wall),
            sleep=self.sleep,
            cut_off=self.cut_off,
        )

    def cut_off(self) -> tuple[float, str]:
        if self.cut_off_at is None:
            return 0.0, ""
        return (inf if self.cut_off_at == inf else asyncio.get_running_loop().time() - self.cut_off_at), "no news"

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.awake.wait()

    async def settle(self, seconds: float) -> float:
        self.calls.append("settle")
        await self.sleep(min(seconds, self.under_way))
        return self.doubtful

    async def _network(self, call: str) -> None:
        self.calls.append(call)
        await self.sleep(0.01)
        if not self.reachable:
            await self.sleep(1.0)
            raise Unavailable(0, "NoAnswer", call)

    async def get(self, path: str, **_: object) -> dict:
        await self._network("get")
        if self.books.lease is None:
            raise NotFound(404, "NotFound", path)
        return copy.deepcopy(self.books.lease)

    async def create(self, path: str, body: dict, **_: object) -> dict:
        await self._network("create")
        if self.books.lease is not None:
            raise Conflict(409, "AlreadyExists", path)
        return await self._answer(self.books.store(body))

    async def put(self, path: str, body: dict, **_: object) -> dict:
        await self._network("put")
        if self.books.lease is None:
            raise NotFound(404, "NotFound", path)
        if body["metadata"]["resourceVersion"] != self.books.lease["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", path)
        return await self._answer(self.books.store(body))

    async def _answer(self, lease: dict) -> dict:
        if self.lose_reply:
            self.lose_reply = False
            raise Unavailable(0, "NoAnswer", "the reply was lost")
        await self.sleep(self.answered_after)
        return lease


class Work:
    """Writes as often as it may, and keeps a log of when, and by whom."""

    def __init__(self, machine: Machine, log: list[tuple[float, str]]) -> None:
        self.machine = machine
        self.log = log
        self.began: list[float] = []
        self.ended: list[float] = []

    async def __call__(self) -> None:
        loop = asyncio.get_running_loop()
        self.began.append(loop.time())
        try:
            while True:
                await self.machine.sleep(0.5)
                if self.machine.elector.may_write():
                    self.log.append((loop.time(), self.machine.elector.identity))
        finally:
            self.ended.append(loop.time())


async def campaign(machine: Machine, work: Work) -> None:
    while True:
        try:
            await machine.elector.lead(work)
        except LeadershipLost:
            await machine.sleep(0.1)


def start(machine: Machine, log: list[tuple[float, str]]) -> tuple[asyncio.Task, Work]:
    work = Work(machine, log)
    return asyncio.ensure_future(campaign(machine, work)), work


def alternations(log: list[tuple[float, str]]) -> list[tuple[str, str, float]]:
    """(from, to, seconds between the last write of one and the first of the other)."""
    return [(a[1], b[1], b[0] - a[0]) for a, b in itertools.pairwise(log) if a[1] != b[1]]


def test_a_new_lease_is_taken_at_once_and_kept():
    async def main() -> None:
        books, log = Books(), []
        one = Machine(books, name="one")
        start(one, log)
        await asyncio.sleep(100)
        assert log[0][0] < 1
        assert len(log) > 190
        one.elector.fence()
        spec = books.lease["spec"]
        assert spec["holderIdentity"] == one.elector.identity
        assert spec["holderIdentity"].startswith("one_")
        assert spec["leaseTransitions"] == 0
        assert spec["leaseDurationSeconds"] == 15
        assert spec["acquireTime"] == "2026-01-01T00:00:00.010000Z"
        assert spec["renewTime"] > "2026-01-01T00:01:37"
        assert one.calls.count("get") == 1  # a leader's own last write needs no reading
        assert 40 < one.calls.count("put") < 60

    virtually(main)


async def one_before_two(books, log):
    """Two machines; the first leads."""
    one, two = Machine(books, name="one"), Machine(books, name="two")
    start(one, log)
    await asyncio.sleep(1)
    start(two, log)
    return one, two


def test_a_clean_stop_hands_over_without_waiting_and_only_after_the_work_has_ended():
    async def main() -> None:
        books, log = Books(), []
        one, two = Machine(books, name="one"), Machine(books, name="two")
        task, work = start(one, log)
        await asyncio.sleep(1)
        _, other = start(two, log)
        await asyncio.sleep(20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert books.lease["spec"]["holderIdentity"] == ""
        assert not one.elector.may_write()
        assert len(work.ended) == 1
        await asyncio.sleep(5)
        assert other.began[0] - work.ended[0] < 3
        assert books.lease["spec"]["leaseTransitions"] == 1

    virtually(main)


@pytest.mark.parametrize(
    ("under_way", "doubtful", "waits"),
    [
        pytest.param(1.0, 0.0, 1.0, id="under way"),
        pytest.param(60.0, 0.0, SETTLE_S, id="for long"),
        pytest.param(0.0, 7.0, 7.0, id="in doubt"),
        pytest.param(60.0, 7.0, SETTLE_S + 7.0, id="both"),
    ],
)
@pytest.mark.parametrize("renewed", [0, 1])
def test_a_stop_waits_for_the_last_writes_before_the_lease_is_given_up(
    under_way: float, doubtful: float, waits: float, renewed: int
):
    async def main() -> None:
        books, log = Books(), []
        one = Machine(books, name="one")
        task, work = start(one, log)
        await asyncio.sleep(renewed * 2 + 1)
        assert len(books.history) == renewed + 1
        one.under_way, one.doubtful = under_way, doubtful
        one.calls.clear()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert one.calls == ["settle", "get", "put"]
        assert 0 <= asyncio.get_running_loop().time() - work.ended[0] - waits < 0.1
        assert books.lease["spec"]["holderIdentity"] == ""
        assert books.lease["spec"]["leaseDurationSeconds"] == 1, "the least that the API server takes"

    virtually(main)


@pytest.mark.parametrize("under_way", [["get", "create"], ["get", "put"], ["put"]], ids=["made", "taken", "renewed"])
def test_a_stop_lets_a_lease_that_is_being_written_be_answered(under_way: list[str]):
    """Cut off, the API server could still apply it, after the lease was read for its release: it would be of one that
    is no more, for its whole duration."""

    async def main() -> None:
        books, log = Books(), []
        one = Machine(books, name="one")
        if under_way == ["get", "put"]:
            books.store({"metadata": {}, "spec": {"holderIdentity": ""}})
        task, _ = start(one, log)
        if under_way == ["put"]:
            await asyncio.sleep(1)
            one.calls.clear()
        before = len(books.history)
        while one.calls != under_way:
            await asyncio.sleep(0.001)
        assert len(books.history) == before
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert [spec["holderIdentity"] for spec in books.history[before:]] == [one.elector.identity, ""]
        assert not one.elector.may_write()

    virtually(main)


@pytest.mark.parametrize("fault", ["frozen", "cut off"])
def test_a_leader_that_goes_silent_is_fenced_before_the_next_one_writes(fault):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        books, log = Books(), []
        one, two = Machine(books, name="one"), Machine(books, name="two", offset=5000)
        _, first = start(one, log)
        await asyncio.sleep(1)
        _, second = start(two, log)
        await asyncio.sleep(30)
        at = loop.time()
        if fault == "frozen":
            one.awake.clear()
        else:
            one.reachable = False
        while not two.elector.leading:
            await asyncio.sleep(0.1)
        assert not two.elector.may_write(), "what the former leader sent may still be under way"
        await asyncio.sleep(60)
        assert two.elector.may_write()
        # Its last renewal is at most a retry before the fault; then the duration, a retry, and a write's limit.
        assert 15 - 2 + WRITE_TIMEOUT <= second.began[0] - at <= 15 + 3 + WRITE_TIMEOUT
        if fault == "frozen":
            one.awake.set()  # in the middle of whatever it did
            assert not one.elector.may_write()
            with pytest.raises(Fenced):
                one.elector.fence()
        else:
            assert first.ended[0] - at <= 10
            one.reachable = True
        await asyncio.sleep(60)
        assert len({who for _, who in log}) == 2
        ((_, _, gap),) = alternations(log)
        assert gap >= WRITE_TIMEOUT
        assert books.lease["spec"]["leaseTransitions"] == 1
        assert len(first.began) == 1

    virtually(main)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("frozen", r"not renewed in time, noticed (2[0-9]|30) s late: this process stood still \(CPU\?\)"),
        ("cut off", "not renewed in time"),
    ],
)
@pytest.mark.parametrize("moment", [30.0, 31.99, 32.0, 32.015])  # as it sleeps, asks, and hears the answer
def test_who_loses_the_lease_says_whether_it_was_itself_that_stood_still(fault, why, moment):
    async def main() -> None:
        machine = Machine(Books(), name="one")
        leading = asyncio.ensure_future(machine.elector.lead(Work(machine, [])))
        await asyncio.sleep(moment)
        if fault == "frozen":
            machine.awake.clear()
        else:
            machine.reachable = False
        await asyncio.sleep(38)
        machine.awake.set()
        with pytest.raises(LeadershipLost) as lost:
            await leading
        assert re.fullmatch(why, str(lost.value)), lost.value

    virtually(main)


@pytest.mark.parametrize(("theirs", "ours"), [(60.0, 15.0), (15.0, 60.0)])
def test_of_two_durations_the_longer_one_is_waited_for(theirs, ours):
    """As while another configuration is rolled out."""

    async def main() -> None:
        books, log = Books(), []
        one, two = Machine(books, name="one", lease_duration=theirs), Machine(books, name="two", lease_duration=ours)
        start(one, log)
        await asyncio.sleep(1)
        start(two, log)
        await asyncio.sleep(30)
        one.awake.clear()
        await asyncio.sleep(50)
        assert not two.elector.leading
        await asyncio.sleep(30)
        assert two.elector.may_write()

    virtually(main)


@pytest.mark.parametrize("deleted", [False, True])
def test_who_was_overtaken_unawares_notices_with_its_next_renewal(deleted):
    """Its own clock cannot tell it, and what it writes is conditional on versions; but for how long it writes is its
    own affair."""

    async def main() -> None:
        books, log = Books(), []
        one, two = await one_before_two(books, log)
        await asyncio.sleep(30)
        one.awake.clear()
        if deleted:
            books.lease = None
        await asyncio.sleep(60)
        assert two.elector.may_write()
        one.stood_still = 60.0
        one.awake.set()
        woke = asyncio.get_running_loop().time()
        assert one.elector.may_write()
        await asyncio.sleep(60)
        late = [at for at, who in log if who == one.elector.identity and at > woke]
        assert all(at - woke < 0.1 for at in late), "so long two answers take"
        assert two.elector.may_write()

    virtually(main)


def test_a_renewal_counts_from_when_it_was_sent():
    async def main() -> None:
        books, log = Books(), []
        one = Machine(books, name="one")
        start(one, log)
        await asyncio.sleep(20)
        one.answered_after, before = 4.0, books.revision
        while books.revision == before:
            await asyncio.sleep(0.01)
        at = asyncio.get_running_loop().time()
        await asyncio.sleep(3)
        one.reachable = False  # but for the answer to come
        await asyncio.sleep(30)
        assert at + 9 <= log[-1][0] <= at + 10, "then others count its time as over, however late it heard"

    virtually(main)


def test_a_short_outage_costs_no_leadership():
    async def main() -> None:
        books, log = Books(), []
        one, two = Machine(books, name="one"), Machine(books, name="two")
        _, work = start(one, log)
        await asyncio.sleep(1)
        start(two, log)
        for _ in range(10):
            await asyncio.sleep(20)
            one.reachable = False
            await asyncio.sleep(6)
            one.reachable = True
        assert len(work.began) == 1
        assert work.ended == []
        assert {spec["holderIdentity"] for spec in books.history} == {one.elector.identity}

    virtually(main)


def test_who_takes_it_knows_for_how_long_nobody_renewed_it():
    """After a crash somewhat longer than it lasts; after an outage as long as that was, whoever takes it then."""

    async def main() -> None:
        books, log = Books(), []
        one, two = await one_before_two(books, log)
        assert one.elector.unled == 0
        await asyncio.sleep(60)
        one.awake.clear()
        await asyncio.sleep(60)
        assert two.elector.leading
        assert 15 <= two.elector.unled < 25
        two.reachable = False
        await asyncio.sleep(600)
        two.reachable = True
        await asyncio.sleep(60)
        assert two.elector.leading
        assert 600 <= two.elector.unled < 620

    virtually(main)


@pytest.mark.parametrize("said", [None, "", "yesterday", "2026-01-01T00:00:00"])
def test_a_lease_that_does_not_say_when_it_was_renewed_was_so_a_moment_ago(said: str | None):
    async def main() -> None:
        books, log = Books(), []
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": said}
        books.store({"metadata": {"name": "controller"}, "spec": spec})
        one = Machine(books, name="one")
        await asyncio.sleep(100)
        start(one, log)
        await asyncio.sleep(5)
        assert one.elector.leading
        assert one.elector.unled == 0

    virtually(main)


def test_a_lease_out_of_reach_is_told_once_and_so_is_its_return():
    async def main() -> None:
        one = Machine(Books(), name="one")
        one.reachable = False
        with capture_logs() as lines:
            start(one, [])
            await asyncio.sleep(9)
            one.reachable = True
            await asyncio.sleep(9)
        told = [line["event"] for line in lines if "reach" in line["event"] and line["log_level"] != "debug"]
        assert told == ["lease not reached", "lease reached again"]

    virtually(main)


def test_who_has_not_seen_all_never_takes_it_and_whoever_has_need_not_wait():
    async def main() -> None:
        books, log = Books(), []
        one, two = Machine(books, name="one"), Machine(books, name="two")
        one.cut_off_at = inf
        _, never = start(one, log)
        with capture_logs() as lines:
            await asyncio.sleep(300)
        assert books.lease is None
        assert [line["why"] for line in lines] == ["no news"]
        _, work = start(two, log)
        await asyncio.sleep(5)
        two.reachable = False  # dead, and its lease runs out
        await asyncio.sleep(300)
        assert never.began == []
        one.cut_off_at = None
        await asyncio.sleep(0.3)
        assert len(work.began) == len(never.began) == 1

    virtually(main)


@pytest.mark.parametrize("there", [True, False])
def test_a_leader_without_news_gives_it_up_to_who_has_them_and_leads_on_where_nobody_has(there):
    async def main() -> None:
        books, log = Books(), []
        one, two = Machine(books, name="one"), Machine(books, name="two")
        _, work = start(one, log)
        await asyncio.sleep(100)
        two.cut_off_at = 0.0 if there else inf
        _, other = start(two, log)
        one.cut_off_at = 100.0
        await asyncio.sleep(25)
        assert work.ended == []
        if there:
            two.cut_off_at = None
        await asyncio.sleep(15)
        assert len(work.ended) == 1
        assert 30 <= work.ended[0] - 100 < 33
        if there:
            await asyncio.sleep(3600)
            assert len(other.began) == len(work.began) == 1
            assert other.began[0] - work.ended[0] < 3
            return
        await asyncio.sleep(24 * 3600)
        assert other.began == []
        pauses = [began - ended for ended, began in zip(work.ended, work.began[1:], strict=False)]
        assert all(10 <= pause < 13 for pause in pauses)
        assert sum(pauses) < 0.01 * 24 * 3600
        one.cut_off_at = None
        steps = len(work.ended)
        await asyncio.sleep(3600)
        one.cut_off_at = asyncio.get_running_loop().time()
        await asyncio.sleep(40)
        assert len(work.ended) == steps + 1  # as soon as the first time

    virtually(main)


def test_it_is_left_to_those_who_seldom_look_for_as_long_as_they_take():
    async def main() -> None:
        books, log = Books(), []
        seldom = {"lease_duration": 120.0, "renew_deadline": 90.0, "retry": 40.0}
        one, two = Machine(books, name="one", **seldom), Machine(books, name="two", **seldom)
        _, work = start(one, log)
        await asyncio.sleep(1)
        _, other = start(two, log)
        for _ in range(10):
            one.cut_off_at = asyncio.get_running_loop().time()
            two.cut_off_at = None
            await asyncio.sleep(200)
            assert one.elector.holder == two.elector.identity
            one.cut_off_at, two.cut_off_at = None, asyncio.get_running_loop().time()
            await asyncio.sleep(200)
            assert one.elector.holder == one.elector.identity
        assert len(work.began) == 11
        assert len(other.began) == 10

    virtually(main)


@pytest.mark.parametrize("seconds", [5.0, 29.0])
def test_a_short_time_without_news_costs_no_leadership(seconds):
    async def main() -> None:
        books, log = Books(), []
        one, _ = await one_before_two(books, log)
        for _ in range(20):
            one.cut_off_at = asyncio.get_running_loop().time()
            await asyncio.sleep(seconds)
            one.cut_off_at = None
            await asyncio.sleep(3)
        assert {who for _, who in log} == {one.elector.identity}

    virtually(main)


def test_clocks_that_disagree_change_nothing():
    async def main() -> None:
        books, log = Books(), []
        one = Machine(books, name="one", offset=-1e6, wall=-3600)
        two = Machine(books, name="two", offset=1e6, wall=3600)
        start(one, log)
        await asyncio.sleep(1)
        start(two, log)
        await asyncio.sleep(600)
        assert {who for _, who in log} == {one.elector.identity}

    virtually(main)


def test_a_renewal_whose_reply_was_lost_is_found_again():
    async def main() -> None:
        books, log = Books(), []
        one = Machine(books, name="one")
        _, work = start(one, log)
        await asyncio.sleep(5)
        for _ in range(10):
            one.lose_reply = True
            await asyncio.sleep(7)
        assert len(work.began) == 1
        assert one.elector.leading

    virtually(main)


def test_taking_a_lease_with_the_reply_lost_keeps_the_wait_of_a_takeover():
    async def main() -> None:
        books, log = Books(), []
        one, two = Machine(books, name="one"), Machine(books, name="two")
        start(one, log)
        await asyncio.sleep(1)
        _, second = start(two, log)
        await asyncio.sleep(10)
        one.awake.clear()
        two.lose_reply = True
        at = asyncio.get_running_loop().time()
        await asyncio.sleep(60)
        assert second.began[0] - at >= 15 - 2 + WRITE_TIMEOUT
        assert books.lease["spec"]["leaseTransitions"] == 1

    virtually(main)


def test_a_lease_deleted_under_its_leader_gives_nobody_an_early_write():
    async def main() -> None:
        books, log = Books(), []
        one, two = await one_before_two(books, log)
        await asyncio.sleep(20)
        one.awake.clear()
        books.lease = None
        await asyncio.sleep(60)
        one.awake.set()
        await asyncio.sleep(60)
        assert [(a, b) for a, b, _ in alternations(log)] == [(one.elector.identity, two.elector.identity)]
        assert all(gap >= WRITE_TIMEOUT for _, _, gap in alternations(log))

    virtually(main)


@pytest.mark.parametrize("seen", [True, False])
def test_a_lease_that_a_person_takes_from_its_leader_gives_nobody_an_early_write(seen):
    """As is done to have another lead: the one before goes on until it hears of it. The next may have seen it lead, or
    have come since."""

    async def main() -> None:
        books, log = Books(), []
        one, two = Machine(books, name="one"), Machine(books, name="two")
        start(one, log)
        await asyncio.sleep(1)
        if seen:
            start(two, log)
        await asyncio.sleep(20)
        one.awake.clear()
        spec = books.lease["spec"] | {"holderIdentity": ""}
        books.store({"metadata": {"name": "controller"}, "spec": spec})
        if not seen:
            start(two, log)
        await asyncio.sleep(5)
        assert two.elector.leading
        one.awake.set()
        await asyncio.sleep(60)
        ((_, to, gap),) = alternations(log)
        assert to == two.elector.identity
        assert gap >= WRITE_TIMEOUT

    virtually(main)


@pytest.mark.parametrize("ending", ["returns", "raises", "is fenced"])
def test_work_that_ends_ends_the_leadership(ending):
    async def main() -> None:
        books = Books()
        one = Machine(books, name="one")

        async def work() -> None:
            await one.sleep(3)
            if ending == "raises":
                raise RuntimeError("a bug")
            if ending == "is fenced":
                raise Fenced

        if ending == "returns":
            await one.elector.lead(work)
        else:
            with pytest.raises(RuntimeError if ending == "raises" else Fenced):
                await one.elector.lead(work)
        assert books.lease["spec"]["holderIdentity"] == ""
        assert not one.elector.may_write()
        puts = one.calls.count("put")
        await asyncio.sleep(60)
        assert one.calls.count("put") == puts

    virtually(main)


def test_the_holder_is_told_as_it_changes():
    async def main() -> None:
        books, told = Books(), []
        one, two = Machine(books, name="one"), Machine(books, name="two")
        two.elector._on_change = told.append
        task, _ = start(one, [])
        await asyncio.sleep(1)
        start(two, [])
        await asyncio.sleep(5)
        task.cancel()
        await asyncio.sleep(10)
        assert [who.split("_")[0] for who in told if who] == ["one", "two"]

    virtually(main)


def test_who_hears_that_another_leads_writes_nothing_while_its_work_ends():
    """By its own clock it could."""

    async def main() -> None:
        books, may = Books(), []
        one = Machine(books, name="one")

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await one.sleep(0.5)
                may.append(one.elector.may_write())

        leading = asyncio.ensure_future(one.elector.lead(work))
        await asyncio.sleep(5)
        assert one.elector.may_write()
        books.store({"metadata": {}, "spec": {"holderIdentity": "two"}})
        with pytest.raises(LeadershipLost, match="taken by two"):
            await leading
        assert may == [False]

    virtually(main)


@pytest.mark.parametrize("times", [(15, 15, 2), (15, 10, 10), (10, 12, 1), (5, 3, 0)])
def test_times_that_cannot_work_are_refused(times):
    duration, deadline, retry = times
    with pytest.raises(ValueError, match="must hold"):
        LeaderElector(None, "a", "b", lease_duration=duration, renew_deadline=deadline, retry=retry)


@pytest.mark.parametrize("seed", range(20))
def test_two_never_write_within_a_writes_time_limit(seed):
    """Freezes, cuts, lost replies, no news, and clocks that run 5 % apart, in any order."""
    chance = random.Random(seed)

    async def main() -> None:
        books, log = Books(), []
        machines = [
            Machine(books, name=name, offset=chance.uniform(0, 1e6), rate=chance.uniform(0.975, 1.025))
            for name in ("one", "two", "three")
        ]
        tasks = [start(machine, log)[0] for machine in machines]
        for _ in range(60):
            machine = chance.choice(machines)
            match chance.randrange(7):
                case 0:
                    machine.awake.clear()
                case 1:
                    machine.reachable = False
                case 2:
                    machine.lose_reply = True
                case 3:
                    machine.cut_off_at = chance.choice((asyncio.get_running_loop().time(), inf))
                case _:
                    machine.awake.set()
                    machine.reachable = True
                    machine.cut_off_at = None
            await asyncio.sleep(chance.uniform(0, 40))
            assert sum(machine.elector.may_write() for machine in machines) <= 1
        for machine in machines:
            machine.awake.set()
            machine.reachable = True
            machine.cut_off_at = None
        before = len(log)
        await asyncio.sleep(120)
        assert len(log) > before  # somebody leads once the faults stop
        assert len({who for _, who in log[-20:]}) == 1
        # After a hand-over in good order the next may write at once; after any other, not before the limit.
        for _, successor, gap in alternations(log):
            assert gap >= WRITE_TIMEOUT * 0.9 or _released_before(books, successor)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    virtually(main)


def _released_before(books: Books, successor: str) -> bool:
    holders = [spec["holderIdentity"] for spec in books.history]
    return any(a == "" and b == successor for a, b in itertools.pairwise(holders))


def test_api_errors_do_not_escape_a_candidate():
    async def main() -> None:
        books, log = Books(), []
        one = Machine(books, name="one")
        one.reachable = False
        task, work = start(one, log)
        await asyncio.sleep(300)
        assert not task.done()
        assert work.began == []
        one.reachable = True
        await asyncio.sleep(5)
        assert len(work.began) == 1
        assert issubclass(Unavailable, ApiError)

    virtually(main)
