"""Small programs that use a client, hold it in some way, and end in some way.

Each is a file of a few lines, as a user writes it. `HOLDINGS` are the ways to hold a client,
`ENDINGS` are the ways to end.
"""

from __future__ import annotations

from typing import Final

MESSAGES: Final = 10
# An orderly program ends without this time passing. The messages would be sent then.
LINGER_MS: Final = 600_000
# A broker takes messages back from a client that is silent for two of them.
HEARTBEAT_MS: Final = 1_000

HEAD: Final = """\
import asyncio, gc, multiprocessing, os, signal, sys, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import zsq

"""

ENDINGS: Final = {
    "returns": "pass",
    "raises": "raise RuntimeError('boom')",
    "`sys.exit(3)`": "sys.exit(3)",
    "Ctrl-C": "signal.raise_signal(signal.SIGINT)",
    "dropped": "pass",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "SIGHUP": "os.kill(os.getpid(), signal.SIGHUP)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "`os._exit(3)`": "os._exit(3)",
}
# After these, no Python code runs, and the client cannot do anything.
AT_ONCE: Final = frozenset({"SIGTERM", "SIGHUP", "SIGKILL", "`os._exit(3)`"})

_AFTER: Final = """\
def after():
    pass
"""
# The program goes on without the client. `os._exit` shows that its end has done nothing for it.
# ZeroMQ closes descriptors in a thread of its own, a little after the socket was closed.
_AFTER_DROP: Final = """\
def sockets():
    names = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(os.readlink(n).startswith("socket:") for n in names if os.path.islink(n))

def after():
    gc.collect()
    while any(thread.name.startswith("zsq") for thread in threading.enumerate()):
        time.sleep(0.01)
    gc.collect()
    until = time.monotonic() + 20
    while sockets() and time.monotonic() < until:
        time.sleep(0.01)
    print("descriptors", sockets(), flush=True)
    os._exit(0)
"""

_WORK: Final = """\
def work():
    client = make()
    use(client)
    end()

"""

_AWORK: Final = """\
async def work():
    client = make()
    await use(client)
    end()

"""


_CHILD: Final = """\
def child():
    work()
    after()

"""

HOLDINGS: Final = {
    "global of a module": """\
client = make()
use(client)
end()
del client
after()
""",
    "local of a function": f"""\
{_WORK}
work()
after()
""",
    "attribute in a cycle": """\
class Holder:
    def __init__(self):
        self.myself = self
        self.client = make()

def work():
    holder = Holder()
    use(holder.client)
    end()

work()
after()
""",
    "`with` block": """\
with make() as client:
    use(client)
    end()
after()
""",
    "`with` in a dropped generator": """\
def steps():
    with make() as client:
        use(client)
        yield

def work():
    generator = steps()
    next(generator)
    end()

work()
after()
""",
    "thread": f"""\
{_WORK}
thread = threading.Thread(target=work)
thread.start()
thread.join()
after()
""",
    "thread pool": f"""\
{_WORK}
with ThreadPoolExecutor(1) as pool:
    pool.submit(work).result()
after()
""",
    "`multiprocessing`, fork": f"""\
{_WORK}{_CHILD}
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
print("code", process.exitcode)
""",
    "`multiprocessing`, spawn": f"""\
{_WORK}{_CHILD}
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    print("code", process.exitcode)
""",
    "`ProcessPoolExecutor`, fork": f"""\
{_WORK}{_CHILD}
with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
    pool.submit(child).result()
""",
    "`os.fork`": f"""\
{_WORK}{_CHILD}
pid = os.fork()
if pid == 0:
    child()
else:
    print("code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
}

HOLDINGS["cell of a notebook that ran twice"] = """\
cell = compile("client = make()", "cell", "single")
exec(cell, globals())
exec(cell, globals())
use(client)
end()
del client
after()
"""

AIO_HOLDINGS: Final = {
    "asyncio, local of a coroutine": f"""\
{_AWORK}
asyncio.run(work())
after()
""",
    "asyncio, global of a module": """\
async def work():
    await use(client)
    end()

client = make()
asyncio.run(work())
del client
after()
""",
    "asyncio, `async with` block": """\
async def work():
    async with make() as client:
        await use(client)
        end()

asyncio.run(work())
after()
""",
    "asyncio, cancelled task": """\
async def work(used):
    client = make()
    await use(client)
    used.set()
    await asyncio.sleep(3600)

async def main():
    used = asyncio.Event()
    task = asyncio.create_task(work(used))
    await used.wait()
    task.cancel()
    await asyncio.wait([task])
    end()

asyncio.run(main())
after()
""",
    "asyncio, `asyncio.timeout` that ends": """\
async def work():
    async with asyncio.timeout(None) as limit:
        client = make()
        await use(client)
        limit.reschedule(0)
        await asyncio.sleep(3600)

async def main():
    try:
        await work()
    except TimeoutError:
        pass
    end()

asyncio.run(main())
after()
""",
    "asyncio, `TaskGroup` with a task that fails": """\
async def work(used):
    client = make()
    await use(client)
    used.set()
    await asyncio.sleep(3600)

async def fail(used):
    await used.wait()
    raise RuntimeError("the other task")

async def main():
    used = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(work(used))
            group.create_task(fail(used))
    except* RuntimeError:
        pass
    end()

asyncio.run(main())
after()
""",
}

# Messages of `plain` are durable when `publish` returns.
PRODUCER: Final = """\
def make():
    return zsq.{module}Producer({url!r}, linger_ms={linger_ms})

{sync}def use(client):
    with zsq.Producer({url!r}) as plain:
        plain.publish("plain", {body!r})
        plain.publish("plain", {body!r}, delay=3600)
    for _ in range({count}):
        {wait}client.publish("lingering", {body!r})
    {wait}client.publish("delayed", {body!r}, delay=3600)
"""

CONSUMER: Final = """\
def make():
    return zsq.{module}Consumer("work", {name!r}, url={url!r}, heartbeat_ms={heartbeat_ms})

{sync}def use(client):
    {wait}({wait}client.receive()).finish()
    assert {wait}client.receive()
"""


def producer_program(url: str, name: str, holding: str, ending: str) -> str:
    """Return a program that publishes messages with the body `name`."""
    use = PRODUCER.format(
        url=url, body=name.encode(), linger_ms=LINGER_MS, count=MESSAGES, **_words(holding)
    )
    return _assembled(use, (HOLDINGS | AIO_HOLDINGS)[holding], ending)


def consumer_program(url: str, name: str, holding: str, ending: str) -> str:
    """Return a program that finishes one message of the channel `name`, and holds another one."""
    heartbeat_ms = HEARTBEAT_MS if ending in AT_ONCE else None
    use = CONSUMER.format(url=url, name=name, heartbeat_ms=heartbeat_ms, **_words(holding))
    return _assembled(use, (HOLDINGS | AIO_HOLDINGS)[holding], ending)


def _words(holding: str) -> dict[str, str]:
    if holding in HOLDINGS:
        return {"module": "", "sync": "", "wait": ""}
    return {"module": "aio.", "sync": "async ", "wait": "await "}


def _assembled(use: str, body: str, ending: str) -> str:
    if ending != "dropped":
        body = body.replace("del client\n", "")
    end = f"def end():\n    {ENDINGS[ending]}\n"
    after = _AFTER_DROP if ending == "dropped" else _AFTER
    return "\n".join([HEAD + use, end, after, body])


# Ways to consume. The program ends in the handling of the second message.

CONSUMING_ENDINGS: Final = {
    "closes": "client.close()",
    "Ctrl-C": "signal.raise_signal(signal.SIGINT)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "SIGHUP": "os.kill(os.getpid(), signal.SIGHUP)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
}

_COUNT: Final = """\
seen = []

def is_second(message):
    seen.append(message)
    return len(seen) == 2

"""

_HANDLE: Final = """\
def handle(message):
    if is_second(message):
        {end}

"""

_AHANDLE: Final = """\
async def handle(message):
    if is_second(message):
        {end}

"""

CONSUMING: Final = {
    "loop": """\
for message in client:
    if is_second(message):
        {end}
    else:
        message.finish()
""",
    "`run`": f"""\
{_HANDLE}
client.run(handle)
""",
    "`run`, 4 threads": f"""\
{_HANDLE}
client.run(handle, concurrency=4)
""",
    "asyncio, loop": """\
async def main():
    async for message in client:
        if is_second(message):
            {end}
        else:
            await message.finish()

asyncio.run(main())
""",
    "asyncio, `run`": f"""\
{_AHANDLE}
asyncio.run(client.run(handle))
""",
    "asyncio, `run`, 4 tasks": f"""\
{_AHANDLE}
asyncio.run(client.run(handle, concurrency=4))
""",
}


def consuming_program(url: str, name: str, way: str, ending: str) -> str:
    """Return a program that consumes from the channel `name`."""
    module = "aio." if way.startswith("asyncio") else ""
    heartbeat_ms = HEARTBEAT_MS if ending in AT_ONCE else None
    make = f'client = zsq.{module}Consumer("work", {name!r}, url={url!r}, '
    make += f"heartbeat_ms={heartbeat_ms})\n"
    end = CONSUMING_ENDINGS[ending]
    if module and ending == "closes":
        end = f"await {end}"
    return "\n".join([HEAD + make, _COUNT, CONSUMING[way].format(end=end)])


# Clients that hold no messages.

_OTHER: Final = """\
def work():
    client = {make}
    {use}
    end()

work()
after()
"""

_AOTHER: Final = """\
async def work():
    client = {make}
    await {use}
    end()

asyncio.run(work())
after()
"""

OTHERS: Final = {
    "`Admin`": ("zsq.Admin({url!r})", "client.ping()"),
    "`Reader`": ('zsq.Reader("work", url={url!r})', "client.bounds()"),
    "`StageWriter`": (
        'zsq.StageWriter("staged", "app", {number}, url={url!r})',
        'client.push(pack([b"staged"]))',
    ),
    "`aio.Admin`": ("zsq.aio.Admin({url!r})", "client.ping()"),
    "`aio.Reader`": ('zsq.aio.Reader("work", url={url!r})', "client.bounds()"),
}


def other_program(url: str, number: int, client: str, ending: str) -> str:
    """Return a program that uses a client of this kind in a function."""
    make, use = OTHERS[client]
    template = _AOTHER if client.startswith("`aio.") else _OTHER
    head = "from zsq.transport.block.block import pack\n" if "pack" in use else ""
    body = template.format(make=make.format(url=url, number=number), use=use)
    return _assembled(head, body, ending)
