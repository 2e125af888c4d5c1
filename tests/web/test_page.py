"""What the page is told: to each what they may see, in the words of the conditions, in bounded amounts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

import pytest
from msgspec.structs import replace

from admission.engine.model import Workload
from admission.kube.client import Unavailable
from admission.sandbox.store import User
from admission.web import page, stories
from admission.web.stories import Stories
from admission.web.view import View
from tests.web.running import NAMES, Running, job, running

Json = dict[str, Any]


@pytest.fixture
async def town() -> AsyncIterator[Running]:
    async with running() as one:
        yield one


async def test_each_sees_what_they_may_see(town: Running) -> None:
    await town.submit("team-a", "alpha", pods=2)
    await town.submit("team-b", "beta", pods=1)
    await town.until(lambda: town.running() == {"alpha", "beta"})
    rows: list[tuple[str, str, set[str], bool]] = [
        ("ops-token", "olga", {"team-a/alpha", "team-b/beta"}, True),
        ("ann-token", "ann", {"team-a/alpha"}, False),
        ("bob-token", "bob", {"team-b/beta"}, False),
        ("nobody-token", "nobody", set(), False),
    ]
    for token, user, seen, platform in rows:
        me = await town.get("/api/me", token)
        assert (me["user"], me["queues"], me["nodes"]) == (user, platform, platform)
        jobs = await town.get("/api/jobs", token)
        assert {f"{job['namespace']}/{job['name']}" for job in jobs["items"]} == seen
        assert jobs["total"] == len(seen)
        queues = (await town.get("/api/queues", token))["items"]
        assert {row["namespace"] for row in queues if row["kind"] == "LocalQueue"} == {
            one.split("/")[0] for one in seen
        }
        assert any(row["kind"] == "ClusterQueue" for row in queues) == platform
        assert bool((await town.get("/api/nodes", token))["items"]) == platform
    beta = town.workloads()["beta"]
    told = await town.get("/api/job", "ann-token", 403, namespace="team-b", workload=beta.name)
    assert told["message"] == "you may not see the jobs of namespace team-b"
    assert (await town.get("/api/job", "bob-token", namespace="team-b", workload=beta.name))["job"]["name"] == "beta"


@pytest.mark.parametrize("token", ["", "wrong", "x" * 20_000, "ops-token "])
async def test_without_a_token_that_the_api_server_knows_there_is_nothing(town: Running, token: str) -> None:
    for path in ("/api/me", "/api/queues", "/api/jobs", "/api/nodes", "/api/job", "/api/changes"):
        async with town.http.get(path, headers={"Authorization": f"Bearer {token}"}) as answer:
            # Around a token white space counts for nothing; a header of that length is refused by the server itself.
            wanted = 200 if token == "ops-token " and path != "/api/job" else 404 if token == "ops-token " else 401
            assert answer.status == (400 if len(token) > 8000 else wanted)
            if answer.status == 401:
                assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/api/me", "/api/jobs", "/api/changes"])
async def test_bytes_that_are_no_text_are_nobodys_token(town: Running, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", town.http.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode())
    writer.write(b"Authorization: Bearer \xff\xfe\r\n\r\n")
    await writer.drain()
    assert (await reader.readline()).split()[1] == b"401"
    writer.close()


async def test_a_right_that_is_taken_away_ends_with_its_time(town: Running) -> None:
    access = town.web.visibility._access
    now = 0.0
    access._clock = lambda: now
    assert (await town.get("/api/me", "ann-token"))["namespaces"] == ["team-a"]
    town.cluster.users["ann-token"] = town.cluster.users["nobody-token"]
    assert (await town.get("/api/me", "ann-token"))["user"] == "ann"
    now = 61.0
    assert (await town.get("/api/me", "ann-token"))["namespaces"] == []
    del town.cluster.users["ann-token"]
    now = 122.0
    await town.get("/api/me", "ann-token", 401)


async def test_strangers_with_tokens_do_not_take_the_places_of_writes(town: Running) -> None:
    """Their reviews take turns of their own; whoever comes when too many wait is told so at once."""
    town.client.flow.pushed_back(3600)  # as when every place is taken
    await town.get("/api/me", "nobody-token")
    await town.get("/api/me", "wrong", 401)
    turns = town.web.visibility._access._tokens
    turns._most = 0
    told = await town.get("/api/me", "bob-token", 503)
    assert told["message"] == "too many callers wait to be looked up; try again in a moment"
    assert (await town.get("/api/me", "nobody-token"))["user"] == "nobody"  # is known


async def test_who_cannot_be_answered_has_nothing_more_asked_for_him(
    town: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page asks again soon: what goes on for those that nobody waits for any more would add up."""
    for i in range(5 * page.MOST_REVIEWS):
        name = {"metadata": {"name": f"more-{i}"}}
        await town.client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", **name})
        queue = {"apiVersion": NAMES.api_version, "kind": "LocalQueue", "metadata": {"name": "main"}}
        path = f"/apis/{NAMES.api_version}/namespaces/more-{i}/localqueues"
        await town.client.create(path, queue | {"spec": {"clusterQueue": "team-a"}})
    await town.until(lambda: len(town.controller.state.local_queues) > 5 * page.MOST_REVIEWS)
    reviews, release, asked = town.web.visibility._access._client, asyncio.Event(), []
    create = reviews.create

    async def slowly(path: str, obj: Json) -> Json:
        if not obj["spec"].get("resourceAttributes", {}).get("namespace"):
            return await create(path, obj)
        asked.append(obj)
        if len(asked) == 1:
            raise Unavailable(0, "NoAnswer", "not in time")
        await release.wait()
        return await create(path, obj)

    monkeypatch.setattr(reviews, "create", slowly)
    await town.get("/api/me", "ann-token", 503)
    release.set()
    for _ in range(1000):
        await asyncio.sleep(0)
    assert len(asked) <= page.MOST_REVIEWS


async def test_what_is_shown_moves_with_the_job_and_with_time(town: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await town.submit("team-a", "alpha", pods=2)
    await town.until(lambda: (found := _job_of(town)) is not None and found.ready == 2)
    job = _job_of(town)
    rows: list[tuple[Json, bool]] = [
        ({"ready": 1}, True),
        ({"succeeded": 1}, True),
        ({"suspended": True}, True),
        ({"finished": "Failed", "message": "it broke"}, True),
        ({"resource_version": "999999"}, False),
        ({"max_execution_s": 60}, False),
    ]
    for change, shown in rows:
        before = town.controller.revision
        town.controller._on_job(job, replace(job, **change))
        assert (town.controller.revision > before) == shown, change
        town.controller._on_job(None, job)

    first = await town.get("/api/me")
    monkeypatch.setattr(page, "OLD_S", 0.0)
    async with asyncio.timeout(300):
        while (await town.get("/api/me"))["now"] == first["now"]:
            await asyncio.sleep(0.01)


async def test_a_gang_whose_pods_are_ready_runs_though_its_status_counts_none(
    town: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does not count pods of which one container has ended well while another works."""
    monkeypatch.setattr(page, "FRESH_S", 0.0)
    monkeypatch.setattr(page, "OLD_S", 0.0)
    await town.submit("team-a", "alpha", pods=2)
    await town.until(lambda: (found := _job_of(town)) is not None and found.ready == 2)
    job, workload = _job_of(town), town.workloads()["alpha"]
    pods = town.controller.world.pods_of(("team-a", workload.uid))
    stands = []
    for ready in (2, 1):
        for pod in pods[ready:]:
            town.controller._on_pod(pod, replace(pod, ready=False))
        town.controller._on_job(job, replace(job, ready=0))
        shown = (await town.get("/api/job", namespace="team-a", workload=workload.name))["job"]
        stands.append((shown["state"], shown["ready"]))
    assert stands == [("running", 2), ("starting", 1)]


def _job_of(town: Running) -> Any:
    gang = town.workloads().get("alpha")
    return town.controller.numbers.job(gang.key) if gang is not None else None


async def test_the_tree_adds_up_and_shows_who_has_borrowed(town: Running) -> None:
    await town.submit("team-a", "large", pods=3)
    await town.until(lambda: town.running() == {"large"})
    rows = {(row["kind"], row["name"]): row for row in (await town.get("/api/queues"))["items"]}
    assert [row[1] for row in rows if row[0] != "LocalQueue"] == ["lab", "team-a", "team-b"]
    (lab,), (a,), (b,) = (
        rows[key]["quota"] for key in (("Cohort", "lab"), ("ClusterQueue", "team-a"), ("ClusterQueue", "team-b"))
    )
    assert (a["nominal"], a["used"], a["borrowed"], a["lent"], a["free"]) == (16, 24, 8, 0, 0)
    assert (b["nominal"], b["used"], b["borrowed"], b["lent"], b["free"]) == (8, 0, 0, 8, 0)
    assert (lab["nominal"], lab["used"], lab["free"]) == (24, 24, 0)
    nodes = (await town.get("/api/nodes"))["items"]
    assert len(nodes) == 4
    held = sum(one["amount"] for node in nodes for gang in node["gangs"] for one in gang["holds"])
    assert held == 24 == sum(one["amount"] - one["free"] for node in nodes for one in node["capacity"])
    assert {gang["label"] for node in nodes for gang in node["gangs"]} == {"team-a/large"}


async def test_a_job_that_waits_is_told_in_the_words_of_its_condition(town: Running) -> None:
    await town.submit("team-a", "runs", pods=3)
    await town.until(lambda: town.running() == {"runs"})
    await town.submit("team-a", "waits", pods=2)
    await town.until(town.settled("waits"))
    gang = town.workloads()["waits"]

    def told() -> Json | None:
        seen = town.controller.world.workloads[gang.key]
        entries = {one["type"]: one for one in seen.status.get("conditions") or ()}
        return entries.get("QuotaReserved")

    condition = await town.until(told)
    answer = await town.get("/api/job", "ann-token", namespace="team-a", workload=gang.name)
    job = answer["job"]
    assert (job["state"], job["position"], job["of"], job["ahead"]) == ("waiting", 1, 1, 0)
    assert (job["reason"], job["message"]) == (condition["reason"], condition["message"])
    assert job["means"]
    assert job["numbers"][0]["requested"] == job["numbers"][0]["texts"]["requested"] == "16"
    assert [entry["what"] for entry in answer["story"]] == ["Created", "Waits"]
    assert answer["story"][1]["message"] == condition["message"]
    assert answer["story"][1]["decision"] == town.controller.world.workloads[gang.key].status["decision"] != ""


async def test_a_job_that_started_with_less_is_told_with_how_much(town: Running) -> None:
    less = job("team-a", "less", 8, 9)
    less["metadata"]["annotations"] = {NAMES.min_parallelism_annotation: "1"}
    await town.client.create("/apis/batch/v1/namespaces/team-a/jobs", less)
    await town.until(lambda: town.running() == {"less"})
    name = town.workloads()["less"].name
    told = (await town.get("/api/job", "ann-token", namespace="team-a", workload=name))["job"]
    assert told["pods"] == 9
    assert 0 < told["given"] == sum(part["pods"] for part in told["where"]) < 9


async def test_a_story_goes_from_creation_to_the_end(town: Running) -> None:
    """A borrower runs, is evicted for the owner of the quota, waits, and runs again."""
    await town.submit("team-a", "borrower", pods=3)
    await town.until(lambda: town.running() == {"borrower"})
    name = town.workloads()["borrower"].name
    await town.submit("team-b", "owner", pods=1)
    await town.until(lambda: "owner" in town.running() and "borrower" not in town.running())
    await town.delete("team-b", "owner")
    await town.until(lambda: town.running() == {"borrower"})
    titles: list[str] = []
    async with asyncio.timeout(300):
        while titles.count("Admitted") < 2:  # what is decided is written a little later
            story = (await town.get("/api/job", namespace="team-a", workload=name))["story"]
            titles = [entry["what"] for entry in story]
    assert titles[:3] == ["Created", "Quota and nodes reserved", "Admitted"]
    evicted = next(entry for entry in story if entry["what"] == "Evicted")
    assert "team-b" in evicted["message"]
    assert titles.index("Evicted") < len(titles) - 1 - titles[::-1].index("Admitted")
    assert [entry["at"] for entry in story] == sorted(entry["at"] for entry in story)
    nodes = [node["name"] for entry in story for part in entry["where"] for node in part["nodes"]]
    assert nodes
    path = "/apis/batch/v1/namespaces/team-a/jobs/borrower"
    await town.client.delete(path, propagation="Background")
    await town.until(lambda: "borrower" not in town.workloads())


async def test_who_is_gone_has_finished_or_was_deleted(town: Running) -> None:
    await town.submit("team-a", "holds", pods=3)
    await town.until(lambda: town.running() == {"holds"})
    await town.submit("team-a", "waits", pods=3)
    await town.submit("team-b", "ends", pods=1)
    await town.until(town.settled("waits", "ends"))
    gangs = town.workloads()
    await town.delete("team-a", "waits")
    done = {"type": "Complete", "status": "True", "reason": "CompletionsReached", "message": ""}
    done["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    sure = {**done, "type": "SuccessCriteriaMet"}
    path = "/apis/batch/v1/namespaces/team-b/jobs/ends"
    ended = {"conditions": [sure, done], "completionTime": "2026-01-01T00:00:00Z", "startTime": "2026-01-01T00:00:00Z"}
    await town.client.merge_patch(f"{path}/status", {"status": ended})
    for pod in (await town.client.get("/api/v1/namespaces/team-b/pods"))["items"]:
        await town.client.delete(f"/api/v1/namespaces/team-b/pods/{pod['metadata']['name']}")
    for namespace, name, state in (("team-a", "waits", "deleted"), ("team-b", "ends", "finished")):
        asked = {"namespace": namespace, "workload": gangs[name].name}
        async with asyncio.timeout(300):
            while (shown := (await town.get("/api/job", **asked))["job"])["state"] in (
                "waiting",
                "running",
                "starting",
            ):
                await asyncio.sleep(0.05)
        assert (shown["name"], shown["state"]) in ((name, state), (gangs[name].name, state))


async def test_changes_are_told_to_so_many_and_no_more(town: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "TICK_S", 0.02)
    monkeypatch.setattr(page, "QUIET_S", 0.1)
    headers = {"Authorization": "Bearer ann-token"}

    async def event(answer: Any) -> bytes:
        async with asyncio.timeout(300):
            while (said := bytes(await answer.content.readuntil(b"\n\n"))).startswith(b":"):
                pass
            return said

    async with town.http.get("/api/changes", headers=headers) as first:
        assert first.content_type == "text/event-stream"
        assert (await event(first)).startswith(b"event: changed\ndata: ")
        before = town.controller.revision
        await town.submit("team-a", "one")
        told = 0
        while told <= before:
            told = int((await event(first)).split(b"data: ")[1])
        more = [await town.http.get("/api/changes", headers=headers) for _ in range(page.MOST_STREAMS_OF_ONE - 1)]
        async with town.http.get("/api/changes", headers=headers) as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (503, "30")
        async with town.http.get("/api/changes", headers={"Authorization": "Bearer bob-token"}) as other:
            assert other.status == 200
        for answer in more:
            answer.close()

    async def room() -> int:
        async with town.http.get("/api/changes", headers=headers) as answer:
            return answer.status

    async with asyncio.timeout(300):  # a place is free again as soon as it shows that nobody reads
        while await room() != 200:
            await asyncio.sleep(0.02)


async def test_the_accounts_of_a_namespace_are_one_reader(town: Running) -> None:
    """Whoever may make ServiceAccounts could take the places of all."""
    for i in range(page.MOST_STREAMS_OF_ONE + 1):
        town.cluster.users[f"account-{i}"] = User(f"system:serviceaccount:team-a:account-{i}", ("team-a",))
    town.cluster.users["other"] = User("system:serviceaccount:team-b:account-0", ("team-b",))
    tokens = [f"account-{i}" for i in range(page.MOST_STREAMS_OF_ONE + 1)] + ["other", "ann-token"]
    asked = [await town.http.get("/api/changes", headers={"Authorization": f"Bearer {one}"}) for one in tokens]
    assert [one.status for one in asked] == [200] * page.MOST_STREAMS_OF_ONE + [503, 200, 200]
    for one in asked:
        one.close()


async def test_many_pages_cost_one_answer_a_second(town: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given again while it is fresh, and to the same eyes only; it says of which revision it is."""
    first = await town.get("/api/jobs")
    await town.submit("team-a", "one")
    await town.until(lambda: town.running() == {"one"})
    again = await town.get("/api/jobs") if first["revision"] else {}
    assert again["revision"] in (first["revision"], town.controller.revision)  # the second may be over
    assert [job["name"] for job in (await town.get("/api/jobs", "ann-token"))["items"]] == ["one"]
    monkeypatch.setattr(page, "FRESH_S", 0.0)
    last = await town.get("/api/jobs")
    assert [job["name"] for job in last["items"]] == ["one"]
    assert last["revision"] > first["revision"]
    computed = []
    jobs = View.jobs
    monkeypatch.setattr(View, "jobs", lambda *said, **more: computed.append(1) or jobs(*said, **more))
    monkeypatch.setattr(page, "FRESH_S", 1e9)
    given, *others = [await town.get("/api/jobs", limit=7) for _ in range(3)]
    assert given["items"]
    assert others == [given, given]
    assert len(computed) == 1
    for number in range(100, page.MOST_ANSWERS + 105):
        await town.get("/api/jobs", limit=number)
    assert len(computed) == 1 + page.MOST_ANSWERS + 5


async def test_few_large_answers_are_kept(town: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has ten thousand jobs may ask for as many pages of them as he likes."""
    computed = []

    def large(*said: Any, **more: Any) -> Json:
        computed.append(more["offset"])
        return {"items": ["x" * (1 << 20)]}

    monkeypatch.setattr(View, "jobs", large)
    monkeypatch.setattr(page, "FRESH_S", 1e9)
    monkeypatch.setattr(page, "OLD_S", 1e9)
    for offset in (*range(1, 41), 40, 36, 1):
        await town.get("/api/jobs", offset=offset)
    assert computed == [*range(1, 41), 1]


async def test_bad_questions_get_a_clear_answer(town: Running) -> None:
    for query in ({"limit": "-1"}, {"offset": "x"}, {"limit": "9" * 30}):
        assert "write a whole number" in (await town.get("/api/jobs", "ops-token", 400, **query))["message"]
    assert (await town.get("/api/job", "ops-token", 404, namespace="team-a", workload="nil"))["message"]
    assert (await town.get("/api/jobs", "ops-token", limit=999_999_999))["items"] == []
    assert (await town.get("/api/jobs", "ops-token", queue="nil"))["items"] == []
    async with town.http.post("/api/jobs") as answer:
        assert answer.status == 405


async def test_the_page_is_whole_and_asks_nobody_else(town: Running) -> None:
    """No address of somebody else's, no inline script or style, and a policy that would stop them."""
    folder = resources.files("admission.web") / "static"
    assert {file.name for file in folder.iterdir()} == {file for file, _ in page.FILES.values()}
    for name, (file, kind) in page.FILES.items():
        async with town.http.get(f"/{name}") as answer:
            text = await answer.text()
            assert (answer.status, answer.content_type) == (200, kind)
            assert text == (folder / file).read_text()
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'")
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            tag = answer.headers["ETag"]
        async with town.http.get(f"/{name}", headers={"If-None-Match": tag}) as again:
            assert again.status == 304
        outside = set(re.findall(r"(?:https?:)?//[a-z][^\s\"'`]*", re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)))
        assert outside <= {"http://www.w3.org/2000/svg"}, outside
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|<style|\son[a-z]+=|\sstyle=", text)


class _Seen:
    """A Workload with these conditions."""

    def __init__(self, name: str, *conditions: tuple[str, str, str, str], finished: bool = False) -> None:
        self.key = ("ns", name)
        self.uid = name
        self.view = self
        self.value = Workload("ns", name, uid=name, created=1_000, finished=finished)
        self.status = {
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastTransitionTime": "1970-01-01T00:00:02Z",
                }
                for kind, status, reason, message in conditions
            ]
        }


def test_stories_are_bounded_and_a_no_with_new_numbers_is_the_same_no() -> None:
    clock = iter(range(10_000, 10_000_000))
    told = Stories(lambda: next(clock))
    old = None
    for free in range(100):
        new = _Seen("job", ("QuotaReserved", "False", "WaitingForQuota", f"{free} free"))
        told.seen(old, new)
        old = new
    assert [(entry["what"], entry["message"]) for entry in told.of(("ns", "job"))] == [
        ("Created", ""),
        ("Waits", "99 free"),
    ]
    assert told.of(("ns", "job"))[1]["at"] == 2_000
    for turn in range(200):
        word = "WaitingForQuota" if turn % 2 else "TopologyPlacementFailed"
        new = _Seen("job", ("QuotaReserved", "False", word, str(turn)))
        told.seen(old, new)
        old = new
    kept = told.of(("ns", "job"))
    assert len(kept) == stories.MOST_ENTRIES
    assert kept[-1]["message"] == "199"
    told.seen(old, _Seen("job", finished=True))
    assert told.of(("ns", "job"))[-1]["what"] == "Finished"
    for number in range(stories.MOST_JOBS):
        told.seen(None, _Seen(f"other-{number}"))
    assert told.of(("ns", "job")) == []
    assert told.of(("ns", f"other-{stories.MOST_JOBS - 1}"))
    assert NAMES.group == "muster.dev"
