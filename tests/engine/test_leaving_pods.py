"""To ask what were if a gang left is to ask it without its pods; what has really ended, but lingers, holds its room."""

from __future__ import annotations

from msgspec.structs import replace

from admission.engine.cycle import decide
from admission.engine.model import (
    MUSTER,
    Admit,
    Assumed,
    Claim,
    ClusterQueue,
    Cohort,
    Evict,
    Flavor,
    FlavorQuotas,
    Gone,
    LabelSelector,
    LocalQueue,
    Namespace,
    Node,
    Plan,
    PodSet,
    PodShape,
    PodUsage,
    Put,
    Quota,
    ResourceGroup,
    Workload,
)
from admission.engine.state import State

GPU = "nvidia.com/gpu"


class Cluster:
    """Four nodes of 8 GPUs, two queues of 16 in one cohort; pods stand where their gang was admitted."""

    def __init__(self) -> None:
        self.state = State(MUSTER)
        self.gangs: dict[str, Workload] = {}
        self.pods: dict[str, list[PodUsage]] = {}
        put = self.put
        put(Flavor(name="h100", node_labels=(("gpu", "h100"),)))
        put(Cohort(name="all"))
        quota = (FlavorQuotas(name="h100", quotas=((GPU, Quota(16)),)),)
        for team in ("a", "b"):
            group = ResourceGroup(covered=(GPU,), flavors=quota)
            put(ClusterQueue(name=team, cohort="all", groups=(group,), namespace_selector=LabelSelector()))
            put(Namespace(name=team))
            put(LocalQueue(namespace=team, name="main", cluster_queue=team))
        for number in range(4):
            put(Node(name=f"n{number}", labels=(("gpu", "h100"),), allocatable=((GPU, 8), ("pods", 110))))

    def put(self, value: object) -> None:
        self.state.apply(Put(value))  # type: ignore[arg-type]

    def submit(self, team: str, name: str, pods: int, created: int) -> None:
        shape = PodShape(requests=((GPU, 8),))
        gang = Workload(
            namespace=team,
            name=name,
            uid=name,
            queue="main",
            created=created,
            pod_sets=(PodSet(name="main", count=pods, shape=shape),),
        )
        self.gangs[name] = gang
        self.put(gang)

    def cycle(self, now: int) -> Plan:
        plan = decide(self.state, now, 1000)
        for decision in plan.decisions:
            self.state.apply(Assumed(decision))
            gang = self.gangs[decision.key[1]]
            if isinstance(decision, Admit):
                gang = replace(
                    gang, admission=decision.admission, reserved_at=now, admitted=True, admitted_at=now, claims=None
                )
                self.run(gang)
            elif isinstance(decision, Evict):
                gang = replace(gang, evicted="Preempted", evicted_at=now)
            elif isinstance(decision, Claim):
                gang = replace(gang, claims=decision.record)
            self.gangs[gang.name] = gang
            self.put(gang)
        return plan

    def run(self, gang: Workload) -> None:
        assert gang.admission is not None
        topology = gang.admission.pod_sets[0].topology
        assert topology is not None
        hosts = [domain.values[-1] for domain in topology.domains for _ in range(domain.count)]
        self.pods[gang.name] = [
            PodUsage(
                key=(gang.namespace, f"{gang.name}-{rank}"),
                uid=f"{gang.name}-{rank}",
                node=host,
                requests=((GPU, 8), ("pods", 1)),
                workload_uid=gang.uid,
            )
            for rank, host in enumerate(hosts)
        ]
        for pod in self.pods[gang.name]:
            self.put(pod)

    def release(self, name: str) -> None:
        self.gangs[name] = replace(self.gangs[name], admission=None, admitted=False)
        self.put(self.gangs[name])

    def pods_gone(self, name: str) -> None:
        for pod in self.pods.pop(name):
            self.state.apply(Gone(PodUsage, pod.key))

    def free(self) -> int:
        return sum(self.state.ledger.nodes.free(f"n{number}")[GPU] for number in range(4))


def test_a_borrower_with_running_pods_gives_back() -> None:
    cluster = Cluster()
    cluster.submit("a", "a1", 2, 1)
    cluster.submit("a", "a2", 2, 2)
    cluster.cycle(1000)
    cluster.submit("b", "b1", 2, 3)
    plan = cluster.cycle(2000)
    assert [type(decision) for decision in plan.decisions] == [Evict, Claim]
    assert cluster.free() == -16, "the claim stands beside what is still there; a trial leaves no trace"


def test_pods_that_linger_hold_their_nodes_after_the_release() -> None:
    cluster = Cluster()
    cluster.submit("a", "a1", 4, 1)
    cluster.cycle(1000)
    cluster.gangs["a1"] = replace(cluster.gangs["a1"], finished=True)
    cluster.put(cluster.gangs["a1"])
    cluster.submit("b", "b1", 2, 2)
    assert not [d for d in cluster.cycle(2000).decisions if isinstance(d, Admit)]
    cluster.pods_gone("a1")
    assert [type(d) for d in cluster.cycle(3000).decisions] == [Admit]
