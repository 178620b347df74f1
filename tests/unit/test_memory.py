import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow import background, memory
from bernflow.background import BackgroundJit

GIB = 2**30


@pytest.fixture
def system(monkeypatch, tmp_path):
    """Folders in place of /proc and /sys/fs/cgroup, and a function that writes files into them."""
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


def free(monkeypatch, *num_bytes):
    """Pretend that so much is free of the machine, the control group and the address space."""
    texts = [texts for _, *texts in memory.READERS]
    readers = [(lambda num=num: num, *text) for num, text in zip(num_bytes, texts, strict=True)]
    monkeypatch.setattr(memory, "READERS", readers)


def test_a_system_that_tells_nothing_is_not_checked(system):
    assert [read() for read, _, _ in memory.READERS] == [None] * 3
    memory.check_memory(needed=2**60)


def test_memory_of_the_machine(system):
    system("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 1000 kB\nSwapFree: 24 kB\n")
    assert memory.free_in_system() == 2**20
    system("proc/meminfo", "MemTotal: 8000000 kB\n")  # an old kernel
    assert memory.free_in_system() is None


def test_memory_of_control_groups(system):
    system("proc/self/cgroup", "0::/user/job\n")
    system("cgroup/user/job/memory.max", "max\n")
    assert memory.free_in_cgroup() is None
    for folder, most in (("user/job", 5 * GIB), ("user", 3 * GIB)):
        system(f"cgroup/{folder}/memory.max", f"{most}\n")
        system(f"cgroup/{folder}/memory.current", f"{2 * GIB}\n")
        system(f"cgroup/{folder}/memory.stat", f"anon 5\ninactive_file {GIB}\n")
    assert memory.free_in_cgroup() == 2 * GIB, "of the outer one, and cached files are no loss"


def test_memory_of_control_groups_of_the_first_version(system):
    system("proc/self/cgroup", "5:cpu:/\n4:cpuset,memory:/docker/1234\n")
    system("cgroup/memory/memory.limit_in_bytes", f"{3 * GIB}\n")  # a container sees its own group as the root
    system("cgroup/memory/memory.usage_in_bytes", f"{2 * GIB}\n")
    system("cgroup/memory/memory.stat", "total_inactive_file 1024\n")
    assert memory.free_in_cgroup() == GIB + 1024


def test_the_error_says_what_is_free_what_is_needed_and_what_to_do(monkeypatch):
    free(monkeypatch, 8 * GIB, 200 * memory.MIB, None)
    memory.check_memory(needed=100 * memory.MIB)
    with pytest.raises(memory.NotEnoughMemoryError, match=r"200 MiB of the container or job are free.*256 MiB.*more m"):
        bf.fit(bf.from_log_density(lambda x: -jnp.sum(x**2), np.zeros(2)))
    free(monkeypatch, -1, None, None)
    with pytest.raises(bf.BernflowError, match=r"^0 MiB of the memory of this machine are free"):
        memory.check_memory()


def test_long_compilations_are_checked_and_what_is_compiled_runs(monkeypatch):
    short, long = (BackgroundJit(lambda x: 2 * x, is_long=is_long) for is_long in (False, True))
    enough = memory.READERS
    free(monkeypatch, 50 * memory.MIB, None, None)
    assert short(1.0) == 2.0
    for function in (long, long.prepare):
        with pytest.raises(memory.NotEnoughMemoryError, match="takes up to 128 MiB"):
            function(1.0)
    monkeypatch.setattr(memory, "READERS", enough)
    x = jnp.ones(3)
    assert long(x).tolist() == [2.0] * 3
    free(monkeypatch, 50 * memory.MIB, None, None)
    assert long(x).tolist() == [2.0] * 3
    assert background.num_variants(long._compiled) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space of a Linux process")
def test_a_process_near_its_limit_gets_an_error_and_lives_on():
    code = """
import resource, numpy as np, jax.numpy as jnp, bernflow as bf
from bernflow import memory
jnp.zeros(3).block_until_ready()
assert memory.free_address_space() is None
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 100 * 2**20,) * 2)
try:
    bf.fit(bf.from_log_density(lambda x: -jnp.sum(x**2), np.zeros(100)), steps=5, progress=False)
except bf.BernflowError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "MiB of the address space are free" in run.stdout
    assert "ulimit -v" in run.stdout
