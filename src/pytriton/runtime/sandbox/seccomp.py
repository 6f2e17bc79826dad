# SPDX-License-Identifier: Apache-2.0
"""The program of seccomp, with which the kernel judges every system call of a worker.

It denies what Landlock does not know: sockets, tracing, mounts, keyrings, modules. It is made here
without being applied. A program sees the numbers in the arguments of a call and no memory, so a
path or a structure that an argument points to cannot be judged.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Numbers of system calls: on x86_64 and on aarch64, None where there is no such call.
SYSTEM_CALLS: dict[str, tuple[int | None, int | None]] = {
    # Look into or change other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "perf_event_open": (298, 241),
    # The file systems, namespaces.
    "mount": (165, 40),
    "umount2": (166, 39),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "sysfs": (139, None),
    "ustat": (136, None),
    "uselib": (134, None),
    # Kernel keyrings, modules, other kernels, programs in the kernel.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    # The machine: its clock, names, log, ports, swap.
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "personality": (135, 92),
    "vhangup": (153, 58),
    # Memory and queues of other processes of the user, found by numbers and names.
    "shmget": (29, 194),
    "shmctl": (31, 195),
    "shmat": (30, 196),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # They do what other calls do, out of sight of this program.
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "clone3": (435, 435),
    # Judged by their arguments.
    "clone": (56, 220),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "prlimit64": (302, 261),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    # Files by path, of which Landlock does not know these changes.
    "truncate": (76, 45),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
_COLUMNS = {"x86_64": 0, "aarch64": 1}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>

_ALWAYS_DENIED = tuple(SYSTEM_CALLS)[: tuple(SYSTEM_CALLS).index("io_uring_setup")]
# As if the kernel were older: libraries then use older calls.
_UNKNOWN = ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3")
_MODES_AND_TIMES = tuple(SYSTEM_CALLS)[tuple(SYSTEM_CALLS).index("chmod") :]
_SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
_SCHEDULING = ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")

# <linux/filter.h>, <linux/seccomp.h>
LOAD, JUMP_EQUAL, JUMP_FROM, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32 = 0x40000000  # in the numbers of a second interface of x86_64, which nobody uses
_NEGATIVE = 0x80000000
_EVERYBODY = 0xFFFFFFFF  # the process -1

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
# Audit, firewall, events of devices, generic. The C library asks only for routes, which are 0.
_NETLINK_DENIED = (9, 12, 15, 16)
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NAMESPACES = (
    0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
)
_TERMINAL_INPUT = (0x5412, 0x541C, 0x541D)  # TIOCSTI, TIOCLINUX, TIOCCONS
_OWNERS = (8, 15)  # F_SETOWN, F_SETOWN_EX: whom the kernel signals
# F_SETLEASE, F_SETDELEG: whoever opens a file with a lease waits, by default up to 45 s.
_LEASES = (1024, 1040)
# SOCK_STREAM and SOCK_SEQPACKET, each with SOCK_NONBLOCK and SOCK_CLOEXEC. A pair of any other kind
# can send to every socket that has a name, and connect to it.
_PAIRS = tuple(
    kind | blocking | closing
    for kind in (1, 5)
    for blocking in (0, 0x800)
    for closing in (0, 0x80000)
)
_PRIO_PROCESS, _IOPRIO_PROCESS = 0, 1


class Instruction(NamedTuple):
    """An instruction of classic BPF; jumps count the instructions that they skip."""

    code: int
    if_true: int
    if_false: int
    value: int


class Check(NamedTuple):
    """What the lower 32 bits of an argument have to be, for a call to be allowed.

    One of `values`, or from `least` on as a number that is not negative. Without either, anything
    but `forbidden` and numbers with one of `forbidden_bits`.
    """

    argument: int
    values: Sequence[int] = ()
    least: int | None = None
    forbidden: Sequence[int] = ()
    forbidden_bits: int = 0


class Rule(NamedTuple):
    """A call that gets an error, unless all checks hold; 0: it does nothing and succeeds."""

    name: str
    error: int = errno.EPERM
    checks: Sequence[Check] = ()


def rules(
    pid: int,
    *,
    has_network: bool = False,
    has_unix: bool = False,
    has_signal_scope: bool = False,
    has_truncate_right: bool = True,
    has_mounts: bool = False,
) -> list[Rule]:
    """Returns the rules for a worker and all that it starts.

    A process of the user that is not the worker's own cannot be told from one that is, as the
    program only sees numbers. Processes that were started later usually have higher ones.

    Args:
        pid: The worker's process.
        has_network: Sockets of the internet are allowed.
        has_unix: Sockets with names are allowed.
        has_signal_scope: Landlock keeps signals inside of the sandbox.
        has_truncate_right: Landlock knows truncation.
        has_mounts: Files that may not be written are on file systems that are read only.
    """
    own = (0, pid)
    listed = [Rule(name) for name in _ALWAYS_DENIED]
    listed += [Rule(name, errno.ENOSYS) for name in _UNKNOWN]
    listed += [
        Rule("clone", checks=[Check(0, forbidden_bits=_NAMESPACES)]),
        Rule("ioctl", checks=[Check(1, forbidden=_TERMINAL_INPUT)]),
        Rule("prlimit64", checks=[Check(0, own)]),
        Rule("setpriority", checks=[Check(0, (_PRIO_PROCESS,)), Check(1, own, pid)]),
        Rule("ioprio_set", checks=[Check(0, (_IOPRIO_PROCESS,)), Check(1, own, pid)]),
        *(Rule(name, checks=[Check(0, own, pid)]) for name in _SCHEDULING),
        Rule("socket", errno.EACCES, _socket_checks(has_network=has_network, has_unix=has_unix)),
        Rule("socketpair", errno.EACCES, [Check(0, (_AF_UNIX,)), Check(1, _PAIRS)]),
    ]
    forbidden: tuple[int, ...] = _LEASES
    if has_signal_scope:  # the kernel reports success if it has signalled nobody of all
        listed.append(Rule("kill", checks=[Check(0, forbidden=(_EVERYBODY,))]))
    else:
        group = -pid & 0xFFFFFFFF
        listed += [Rule(name, checks=[Check(0, (*own, group), pid)]) for name in _SIGNALS]
        listed.append(Rule("pidfd_send_signal"))
        forbidden += _OWNERS
    listed.append(Rule("fcntl", checks=[Check(1, forbidden=forbidden)]))
    if not has_truncate_right:
        listed.append(Rule("truncate"))
    if not has_mounts:
        listed += [Rule(name, 0) for name in _MODES_AND_TIMES]
    return listed


def _socket_checks(*, has_network: bool, has_unix: bool) -> list[Check]:
    families = [_AF_UNIX] if has_unix else []
    if has_network:
        families += [_AF_INET, _AF_INET6, _AF_NETLINK]
        # Nobody uses protocols of the internet with these numbers.
        return [Check(0, families), Check(2, forbidden=_NETLINK_DENIED)]
    return [Check(0, families or (_NEGATIVE,))]


def make_program(listed: Iterable[Rule], processor: str) -> list[Instruction]:
    """Returns the program for a processor; calls without a rule are allowed."""
    column = _COLUMNS[processor]
    program = [
        Instruction(LOAD, 0, 0, _ARCHITECTURE_AT),
        Instruction(JUMP_EQUAL, 1, 0, _ARCHITECTURES[processor]),
        Instruction(RETURN, 0, 0, KILL),
        Instruction(LOAD, 0, 0, _NUMBER_AT),
    ]
    if processor == "x86_64":
        program += [
            Instruction(JUMP_FROM, 0, 1, _X32),
            Instruction(RETURN, 0, 0, ERROR | errno.ENOSYS),
        ]
    for rule in listed:
        number = SYSTEM_CALLS[rule.name][column]
        if number is not None:
            block = _block(rule)
            program.append(Instruction(JUMP_EQUAL, 0, len(block), number))
            program += block
    return [*program, Instruction(RETURN, 0, 0, ALLOW)]


def _block(rule: Rule) -> list[Instruction]:
    """Returns the instructions for a call; each way through them ends with a return."""
    error = Instruction(RETURN, 0, 0, ERROR | rule.error)
    if not rule.checks:
        return [error]
    block: list[Instruction] = [error]  # from its end, so that each jump knows its way
    block.insert(0, Instruction(RETURN, 0, 0, ALLOW))
    for check in reversed(rule.checks):
        block = [*_judge(check, until_error=len(block) - 1), *block]
    return block


def _judge(check: Check, until_error: int) -> list[Instruction]:
    """Returns instructions that go on behind them, or skip `until_error` more."""
    load = Instruction(LOAD, 0, 0, _ARGUMENTS_AT + 8 * check.argument)
    tests: list[Instruction] = []
    if check.forbidden_bits:
        return [load, Instruction(JUMP_BITS, until_error, 0, check.forbidden_bits)]
    if check.forbidden:
        for after, value in enumerate(reversed(check.forbidden)):
            tests.insert(0, Instruction(JUMP_EQUAL, after + until_error, 0, value))
        return [load, *tests]
    if check.least is not None:
        tests = [
            Instruction(JUMP_FROM, until_error + 1, 0, _NEGATIVE),
            Instruction(JUMP_FROM, 0, until_error, check.least),
        ]
    for value in reversed(check.values):
        # The last of the tests is the one that fails.
        if_false = 0 if tests else until_error
        tests.insert(0, Instruction(JUMP_EQUAL, len(tests), if_false, value))
    return [load, *tests]
