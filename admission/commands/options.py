"""What commands share: how one is told which cluster it is about, how it runs against it, and how it ends.

    @click.command(epilog=examples("muster nodes"))
    @asking(everywhere=True)
    def nodes(scope: Scope, ...) -> None: ...

Exit codes are for scripts: 0 yes, or done; 1 the answer is no, or it waits; 2 bad use; 3 what was named is not there;
4 no cluster, or no rights; 130 interrupted.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import functools
import io
import logging
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from admission.names import KUEUE_GROUP, MUSTER_GROUP

if TYPE_CHECKING:
    from rich.console import RenderableType

    from admission.controller.ask import Ask
    from admission.kube.client import ApiError, Client
    from admission.names import Names

OK, NO, BAD_USE, NOT_THERE, NO_CLUSTER, INTERRUPTED = 0, 1, 2, 3, 4, 130
FORMS = ("text", "wide", "json", "yaml", "name")
form_option = click.option("-o", "--output", type=click.Choice(FORMS), default="text", help="Form of the answer.")
HOME = "muster-system"
"""Namespace of the controller and its Lease, where nothing else is said."""
EVERY_S = 2.0
"""Between two looks of --watch."""
TAB_S = 3.0
"""So long a completion may ask the cluster."""

T = TypeVar("T")
Command = Callable[..., Any]
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def fail(code: int, message: str) -> click.exceptions.Exit:
    """To be raised: say why on standard error, and end with this code."""
    from admission.controller.printable import printable

    print(f"muster: {printable(message)}", file=sys.stderr)
    return click.exceptions.Exit(code)


def examples(*lines: str, codes: str = "") -> str:
    """The end of a command's help."""
    shown = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    return shown + (f"\n\nExit codes: {codes}" if codes else "")


# ---------------------------------------------------------------- which cluster, which namespace, which form


@dataclass(frozen=True)
class Scope:
    """What a command was told of the cluster and of the form of its answer."""

    kubeconfig: str | None = None
    context: str | None = None
    api_group: str | None = None
    controller_namespace: str = HOME
    namespace: str | None = None
    all_namespaces: bool = False
    output: str = "text"
    watch: bool = False


_OF_CONTEXT = "that of the context"


def _not_empty(_ctx: click.Context, _param: click.Parameter, said: str | None) -> str | None:
    """Where nothing said means something else than the context's: a variable that nobody set does not."""
    if said == "":
        raise click.BadParameter("it is empty: name a namespace, or leave the option out")
    return said


def asking(
    *,
    namespace: bool = True,
    unsaid: str = _OF_CONTEXT,
    everywhere: bool = False,
    watch: bool = True,
    form: bool = True,
) -> Callable[[Command], Command]:
    """The options of a command about a cluster; the command gets them as its first argument, a Scope. unsaid: which
    namespace it is about where none is named."""
    options = [
        click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, else ~/.kube/config."),
        click.option("--context", help="Context of the kubeconfig.", shell_complete=_contexts),
        click.option(
            "--api-group",
            type=click.Choice([MUSTER_GROUP, KUEUE_GROUP]),
            metavar="GROUP",
            help="muster.dev or kueue.x-k8s.io. Default: the one the cluster serves.",
        ),
        click.option(
            "--controller-namespace",
            metavar="NAMESPACE",
            default=HOME,
            show_default=True,
            envvar="MUSTER_NAMESPACE",
            show_envvar=True,
            help="Where the controller and its Lease live.",
            callback=_not_empty,
        ),
    ]
    if watch:
        text = "Ask again every two seconds, until interrupted."
        options.insert(0, click.option("-w", "--watch", is_flag=True, help=text))
    if form:
        options.insert(0, form_option)
    if everywhere:
        options.insert(0, click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces."))
    if namespace:
        options.insert(
            0,
            click.option(
                "-n",
                "--namespace",
                help=f"Default: {unsaid}.",
                shell_complete=names_of_kind("namespaces"),
                callback=None if unsaid == _OF_CONTEXT else _not_empty,
            ),
        )

    def wrap(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> Any:
            told = {field: given.pop(field) for field in Scope.__dataclass_fields__ if field in given}
            return command(Scope(**told), **given)

        made: Command = run
        for option in reversed(options):
            made = option(made)
        return made

    return wrap


# ---------------------------------------------------------------- running against a cluster


@dataclass
class Session:
    """A connected client with the names in use. `namespace`: the one asked for, else that of the context."""

    client: Client
    names: Names
    namespace: str
    home: str

    def ask(self) -> Ask:
        """A fresh look, at the time of the API server."""
        from admission.controller.ask import Ask

        return Ask(self.client, self.names, self.client.clock.now(), home=self.home)


@asynccontextmanager
async def connected(scope: Scope) -> AsyncIterator[Session]:
    """Raises click's Exit with 3 or 4 and a sentence for all that can go wrong on the way to an answer."""
    from admission.controller.ask import NotSeen, NotThere, names_of
    from admission.kube.client import ApiError, Client, Forbidden, Unauthorized

    try:
        client = await Client.from_kubeconfig(scope.kubeconfig or None, scope.context, user_agent="muster-cli")
    except Exception as error:  # a kubeconfig, and its plugins, can be wrong in every way there is
        raise fail(NO_CLUSTER, f"no usable kubeconfig: {error}") from None
    try:
        async with client:
            names = await names_of(client, scope.api_group)
            for _ in range(2):  # ages, and whether a Lease still counts, are not to be told by the asker's clock
                if client.clock.doubtful:
                    await client.get("/version")
            yield Session(client, names, scope.namespace or client.namespace, scope.controller_namespace)
    except NotThere as error:
        raise fail(NO_CLUSTER if isinstance(error, NotSeen) else NOT_THERE, str(error)) from None
    except Forbidden as error:
        raise fail(NO_CLUSTER, forbidden(error.message)) from None
    except Unauthorized as error:
        raise fail(NO_CLUSTER, f"{client.url} does not know you: {error.message or error.reason}") from None
    except ApiError as error:
        raise fail(NO_CLUSTER, f"{client.url}: {error.message or error.reason}") from None


_CANNOT = re.compile(
    r'User "(?P<who>[^"]*)" cannot (?P<verb>\w+) resource "(?P<what>[^"]*)".*?(?P<where>in the .*|at .*)$'
)


def forbidden(message: str) -> str:
    """What the API server's authorizer said, as a sentence for a person."""
    found = _CANNOT.search(message)
    if found is None:
        return f"the API server refuses: {message or 'forbidden'}"
    where = found["where"].replace('"', "").split(":")[0]
    return f"{found['who']} may not {found['verb']} {found['what']} {where}; ask your platform team for this right"


def run(scope: Scope, work: Callable[[Session], Awaitable[T]], doing: str = "") -> T:
    """Connect, do the work, and show what is being done when it takes longer than a second."""
    quiet_logs()

    async def whole() -> T:
        async with connected(scope) as session, patience(doing):
            return await work(session)

    try:
        return asyncio.run(whole())
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise click.exceptions.Exit(INTERRUPTED) from None


def end_in_order() -> None:
    """From now on SIGTERM and SIGHUP cancel the work, as Ctrl-C does: it takes back first what was to last only as long
    as it did. Not before the last question: whoever waits for an answer hears no signal."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    told: list[bool] = []

    def stop() -> None:
        if task is not None and not told:  # once: a second one would cut off what is taken back
            told.append(task.cancel())

    for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:  # Windows has no SIGHUP
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup wants it to go on
            with suppress(RuntimeError, ValueError):  # not the main thread: signals are somebody else's there
                loop.add_signal_handler(number, stop)


def answer(
    scope: Scope,
    question: Callable[[Ask, str], Awaitable[Any]],
    show: Callable[[Any, int], tuple[RenderableType, Iterable[str]]],
    doing: str = "",
) -> Any:
    """Put `question(ask, namespace)` to the cluster and print its answer in the form asked for, again and again where
    that was asked for. `show(answer, now)` gives what people read, and the names; the last answer is returned."""
    quiet_logs()

    async def asked() -> Any:
        from rich.live import Live

        from admission.controller import tell
        from admission.kube.client import Unavailable

        console = tell.console()
        live: Live | None = None
        found: Any = None
        try:
            async with connected(scope) as session:
                while True:
                    ask = session.ask()
                    try:
                        async with patience(doing if live is None else ""):
                            found = await question(ask, session.namespace)
                    except Unavailable as error:
                        if found is None:
                            raise
                        print(f"muster: {goes_on(error)}", file=sys.stderr, flush=True)
                        await asyncio.sleep(EVERY_S)
                        continue
                    shown, called = show(found, ask.now)
                    text = tell.written(scope.output, found.as_json(), called)
                    if text is not None:
                        print(text, flush=True)
                    elif scope.watch and console.is_terminal:
                        if live is None:
                            live = Live(console=console, auto_refresh=False)
                            live.start()
                        live.update(shown, refresh=True)
                    else:
                        tell.show(console, shown)
                    if not scope.watch:
                        return found
                    await asyncio.sleep(EVERY_S)
        finally:
            if live is not None:
                live.stop()

    try:
        return asyncio.run(asked())
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def goes_on(error: ApiError) -> str:
    """What whoever watches is told, who goes on: a control plane that is upgraded is away for minutes."""
    from admission.controller.printable import printable

    return f"the API server does not answer, and is asked again: {printable(error.message or error.reason)}"


def say(form: str, found: Any, names: Iterable[str], shown: RenderableType) -> None:
    """Print what was found, in the form asked for: as JSON has it, by its names, or as people read it."""
    from admission.controller import tell

    text = tell.written(form, found, names)
    if text is not None:
        print(text)
    else:
        tell.show(tell.console(), shown)


@asynccontextmanager
async def patience(doing: str) -> AsyncIterator[None]:
    """On a terminal: say what is being done, once it takes longer than a second."""
    if not doing or not sys.stderr.isatty():
        yield
        return

    async def say() -> None:
        from rich.console import Console
        from rich.text import Text

        await asyncio.sleep(1)
        with Console(stderr=True).status(Text(doing)):  # it names what was typed: no markup
            await asyncio.Event().wait()

    saying = asyncio.ensure_future(say())
    try:
        yield
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)


@contextmanager
def steps(doing: str, total: int) -> Any:
    """A bar of steps on standard error, on a terminal; gives the function that takes one."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda: progress.advance(task)


def quiet_logs() -> None:
    configure_logs("console", "error")


class _OfLibraries(logging.Handler):
    """What libraries tell, such as the HTTP server its errors, in lines as any other."""

    def emit(self, record: logging.LogRecord) -> None:
        import structlog

        level = min(logging.CRITICAL, max(logging.DEBUG, record.levelno // 10 * 10))
        structlog.get_logger().log(level, record.getMessage(), logger=record.name, exc_info=record.exc_info or None)


class _StandardError:
    """Lines of the log, to standard error as it is at each line: who runs a command inside a program may have put
    another stream there. Nobody waits or ends for one. What cannot be written (its disk is full, its reader is gone) is
    left out. What a pipe has no room for (its reader hangs) waits, and is written, in order, before the next line; once
    more than `most` bytes wait, lines are left out until there is room, and then it is said how many were."""

    def __init__(self, most: int = 1 << 20) -> None:
        self._most = most
        self._waiting = bytearray()
        self._left_out = 0
        self._lock = threading.RLock()
        atexit.register(self._drain, 2.0)

    def msg(self, line: str) -> None:
        try:
            sys.stderr.fileno()
        except (OSError, ValueError, AttributeError):
            with suppress(OSError, ValueError, AttributeError):
                print(line, file=sys.stderr, flush=True)
            return
        with self._lock:
            self._drain()
            said = f"{line}\n".encode(errors="backslashreplace")
            if self._left_out or (self._waiting and len(self._waiting) + len(said) > self._most):
                self._left_out += 1
                return
            self._waiting += said
            self._drain()

    debug = info = warning = error = critical = msg

    def _drain(self, seconds: float = 0.0) -> None:
        """Write of what waits as much as there is room for, or comes to be within `seconds`."""
        import structlog

        with self._lock, suppress(ValueError, AttributeError):
            until = time.monotonic() + seconds
            while self._waiting or self._left_out:
                if not self._waiting:
                    lines, self._left_out = self._left_out, 0
                    told = "lines of the log were left out: nobody read them"
                    structlog.get_logger("muster").warning(told, lines=lines)
                    continue
                ready = select.poll()
                ready.register(sys.stderr.fileno(), select.POLLOUT)
                if not ready.poll(max(0.0, until - time.monotonic()) * 1000):
                    return
                try:  # so much of it as can be written without waiting to what is ready
                    del self._waiting[: os.write(sys.stderr.fileno(), self._waiting[: select.PIPE_BUF])]
                except BlockingIOError:
                    return
                except OSError:
                    self._waiting.clear()


def configure_logs(form: str, level: str) -> None:
    """`form`: json, or console for people. Lines go to standard error."""
    if "structlog" not in sys.modules and "rich" not in sys.modules:
        # It would load all of rich, for tracebacks that are plain here (format_exc_info).
        sys.modules["rich"] = None  # type: ignore[assignment]
        try:
            import structlog
        finally:
            del sys.modules["rich"]
    import structlog

    number = getattr(logging, level.upper(), logging.INFO)
    lines = _StandardError()
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    root = logging.getLogger()
    if not any(isinstance(one, _OfLibraries) for one in root.handlers):
        root.addHandler(_OfLibraries())
    root.setLevel(max(number, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=False,
    )


def agreed(question: str, *, yes: bool) -> None:
    """Go on only where a person says so: by --yes, or on a terminal. Raises Exit with 1 or 2."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise fail(BAD_USE, f"{question} Say --yes where nobody can be asked.")
    try:
        with _interrupted_at_once():
            agrees = click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        agrees = False
    if not agrees:
        raise fail(NO, "nothing was changed")


@contextmanager
def _interrupted_at_once() -> Iterator[None]:
    """By Ctrl-C, which the loop hears only when it has a turn: it has none while somebody thinks about an answer."""
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Program(click.Group):
    """All commands together. One that is interrupted ends with 130, whatever it did at that moment; for click that is
    one failure among others. So is an answer for which the disk has no room, and 1 would be an answer."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            sys.stdout = io.StringIO()  # what is left of it would be tried again at the end
            raise fail(BAD_USE, f"the answer cannot be written: {error.strerror}") from None


# ---------------------------------------------------------------- completion by the shell


def names_of_kind(*kinds: str) -> Completer:
    """Names from the cluster: of "jobs" (with jobsets), "namespaces", "clusterqueues", "localqueues". Where several are
    given, names are written KIND/NAME for those after the first. Silent when the cluster cannot be asked."""

    def complete(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
        try:
            import admission.controller.ask  # loaded before the time runs

            del admission
            found = asyncio.run(asyncio.wait_for(_names(ctx.params, kinds), TAB_S))
        except Exception:  # a shell that waits for a word is no place for an error
            return []
        return [CompletionItem(name, help=about or None) for name, about in found if name.startswith(typed)]

    return complete


async def _names(params: dict[str, Any], kinds: Sequence[str]) -> list[tuple[str, str]]:
    from admission.controller.ask import Ask, names_of
    from admission.kube.client import Client

    quiet_logs()
    async with await Client.from_kubeconfig(params.get("kubeconfig") or None, params.get("context")) as client:
        ask = Ask(client, await names_of(client, params.get("api_group")), client.clock.now())
        out: list[tuple[str, str]] = []
        for i, kind in enumerate(kinds):
            where = params.get("namespace") or client.namespace
            found = await ask.called(kind, where)
            out += [(name if i == 0 else f"{kind.removesuffix('s')}/{name}", about) for name, about in found]
        return out


def _contexts(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    from admission.kube.credentials import kubeconfigs

    known: dict[str, None] = {}
    for said in kubeconfigs(ctx.params.get("kubeconfig")):
        with suppress(Exception):  # as above
            known |= dict.fromkeys(str(entry["name"]) for entry in said["contexts"])
    return [CompletionItem(name) for name in known if name.startswith(typed)]
