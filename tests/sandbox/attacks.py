# SPDX-License-Identifier: Apache-2.0
"""What hostile models do. Each attack is code of a model.py that runs with its first request.

It sets `escaped` to what it could do, or raises. It knows `facts`, which the request brings: where
secrets are, and which processes and ports there are.
"""

from __future__ import annotations

import textwrap

from tests.repository_e2e.model_files import Files

_CALL = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
def call(numbers, *arguments):
    result = libc.syscall(ctypes.c_long(numbers[column]), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""

# By name: reads and changes of files.
FILES = {
    "reads_the_key_of_the_server": "escaped = open(facts['key']).read()",
    "reads_another_model": "escaped = open(facts['other_weights']).read()",
    "imports_another_model": """
        import importlib.util
        spec = importlib.util.spec_from_file_location('other', facts['other_code'])
        escaped = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(escaped)
    """,
    "lists_the_repository": "escaped = os.listdir(facts['repository'])",
    "lists_the_home_of_the_user": "escaped = os.listdir(facts['home'])",
    "reads_the_passwords_of_the_machine": "escaped = open('/etc/shadow').read()",
    "reads_through_a_symlink": """
        os.symlink(facts['key'], 'link')
        escaped = open('link').read()
    """,
    "reads_through_a_symlink_in_its_folder": """
        escaped = open(os.path.join(os.path.dirname(__file__), 'link')).read()
    """,
    "reads_through_a_hard_link": """
        os.link(facts['key'], os.path.abspath('link'))
        escaped = open('link').read()
    """,
    "reads_through_the_root_of_a_process": """
        escaped = open(f"/proc/{facts['server']}/root{facts['key']}").read()
    """,
    "reads_through_a_file_handle": _CALL
    + """
        handle = ctypes.create_string_buffer(b'\\x80\\0\\0\\0' + bytes(200))
        number = ctypes.c_int()
        call((303, 264), -100, facts['key'].encode(), handle, ctypes.byref(number), 0)
        escaped = 'a handle'
    """,
    "reads_the_shared_memory_of_a_client": "escaped = open(facts['shared_memory']).read()",
    "reads_the_scratch_folders_of_others": """
        mine = os.path.dirname(os.path.dirname(os.environ['TMPDIR'] + '/'))
        escaped = os.listdir(os.path.dirname(os.path.dirname(mine)))
    """,
    "reads_secret_variables": """
        seen = str(dict(os.environ)) + open('/proc/self/environ').read()
        escaped = facts['secret'] in seen
        assert not escaped
        raise PermissionError('no secret is there')
    """,
    "writes_into_its_folder": "escaped = open(os.path.dirname(__file__) + '/new', 'w')",
    "changes_another_model": "escaped = open(facts['other_code'], 'a')",
    "removes_another_model": "escaped = os.unlink(facts['other_code']) or 'removed'",
    "moves_another_model": "escaped = os.rename(facts['other_code'], 'mine') or 'moved'",
    "empties_the_key": "escaped = os.truncate(facts['key'], 0) or 'empty'",
    "changes_the_mode_of_another_model": """
        before = os.stat(facts['other_code']).st_mode
        os.chmod(facts['other_code'], 0)
        if os.stat(facts['other_code']).st_mode == before:
            raise PermissionError('without effect')
        escaped = 'changed'
    """,
    "changes_the_time_of_another_model": """
        before = os.stat(facts['other_code']).st_mtime
        os.utime(facts['other_code'], (0, 0))
        if os.stat(facts['other_code']).st_mtime == before:
            raise PermissionError('without effect')
        escaped = 'changed'
    """,
    "changes_the_packages_of_the_server": "escaped = open(np.__file__, 'a')",
    "makes_a_device": "escaped = os.mknod('disk', 0o60600, os.makedev(8, 0)) or 'made'",
}
SOCKETS = {
    "connects_to_a_port": "escaped = socket.create_connection(('127.0.0.1', facts['port']), 5)",
    "connects_to_the_server": """
        escaped = socket.create_connection(('127.0.0.1', facts['http_port']), 5)
    """,
    "sends_a_datagram": """
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        escaped = sock.sendto(b'secret', ('127.0.0.1', facts['port']))
    """,
    "listens": "escaped = socket.create_server(('127.0.0.1', 0))",
    "resolves_a_name": "escaped = socket.getaddrinfo('localhost.example.org', 80)",
    "connects_to_a_unix_socket": """
        sock = socket.socket(socket.AF_UNIX)
        escaped = sock.connect(facts['unix_socket']) or 'connected'
    """,
    "connects_to_an_abstract_socket": """
        sock = socket.socket(socket.AF_UNIX)
        escaped = sock.connect('\\0' + facts['abstract_socket']) or 'connected'
    """,
    "sends_to_a_unix_socket_from_a_pair": """
        sock, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        escaped = sock.sendto(b'secret', facts['datagram_socket'])
    """,
    "connects_a_pair_to_a_unix_socket": """
        sock, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)
        escaped = sock.connect(facts['datagram_socket']) or 'connected'
    """,
    "asks_the_kernel_about_routes": """
        escaped = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    """,
    "reads_packets": "escaped = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)",
    "uses_a_ring_of_the_kernel": _CALL
    + """
        escaped = call((425, 425), 4, ctypes.create_string_buffer(120))
    """,
}
PROCESSES = {
    "traces_the_server": _CALL
    + "escaped = call((101, 117), 16, facts['server'], 0, 0) or 'traced'",
    "reads_the_memory_of_the_server": _CALL
    + """
        area = ctypes.create_string_buffer(8)
        vector = (ctypes.c_size_t * 2)(ctypes.addressof(area), 8)
        escaped = call((310, 270), facts['server'], vector, 1, vector, 1, 0)
    """,
    "opens_the_memory_of_the_server": "escaped = open(f\"/proc/{facts['server']}/mem\", 'rb')",
    "reads_the_environment_of_the_server": """
        escaped = open(f"/proc/{facts['server']}/environ").read()
    """,
    "reads_the_arguments_of_the_server": """
        escaped = open(f"/proc/{facts['server']}/cmdline").read()
    """,
    "lists_the_descriptors_of_its_parent": """
        escaped = os.listdir(f'/proc/{os.getppid()}/fd')
    """,
    "takes_a_descriptor_of_the_server": _CALL
    + """
        pidfd = os.pidfd_open(facts['server'])
        escaped = call((438, 438), pidfd, 0, 0)
    """,
    "kills_the_server": "escaped = os.kill(facts['server'], signal.SIGKILL) or 'killed'",
    "kills_its_parent": "escaped = os.kill(os.getppid(), signal.SIGKILL) or 'killed'",
    "signals_everybody": "escaped = os.kill(-1, 0) or 'would have'",
    "signals_by_a_descriptor": """
        escaped = signal.pidfd_send_signal(os.pidfd_open(facts['server']), 0) or 'would have'
    """,
    "limits_the_server": """
        limits = resource.prlimit(facts['server'], resource.RLIMIT_NOFILE)
        escaped = resource.prlimit(facts['server'], resource.RLIMIT_NOFILE, limits)
    """,
    "moves_the_server_to_a_core": "escaped = os.sched_setaffinity(facts['server'], {0}) or 'moved'",
    "slows_the_server": "escaped = os.setpriority(os.PRIO_PROCESS, facts['server'], 19) or 'slow'",
    "lets_others_wait_for_a_file": """
        import fcntl
        with open(__file__) as file:
            escaped = fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK) or 'a lease'
    """,
    "types_into_a_terminal": """
        import fcntl, termios
        escaped = fcntl.ioctl(0, termios.TIOCSTI, b'x')
    """,
    "loads_a_model": "escaped = pb_utils.load_model('echo') or 'loaded'",
    "unloads_a_model": "escaped = pb_utils.unload_model('echo') or 'unloaded'",
}
KERNEL = {
    "mounts": _CALL
    + """
        escaped = call((165, 40), b'none', os.getcwd().encode(), b'tmpfs', 0, None) or 'mounted'
    """,
    "gets_namespaces": _CALL + "escaped = call((272, 97), 0x10000000) or 'a namespace'",
    "changes_its_root": "escaped = os.chroot('.') or 'changed'",
    "uses_keyrings": _CALL + "escaped = call((250, 219), 0, -3, 0)",
    "loads_a_kernel_module": _CALL + "escaped = call((175, 105), None, 0, b'')",
    "loads_a_program_into_the_kernel": _CALL
    + """
        escaped = call((321, 280), 0, ctypes.create_string_buffer(72), 72)
    """,
    "watches_the_processor": _CALL
    + """
        event = ctypes.create_string_buffer(b'\\1\\0\\0\\0\\x70\\0\\0\\0', 112)
        escaped = call((298, 241), event, 0, -1, -1, 0)
    """,
    "gains_privileges": """
        status = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines()
                      if ':\\t' in line)
        capabilities = int(status['CapEff'], 16) | int(status['CapBnd'], 16)
        escaped = (status['NoNewPrivs'] != '1', capabilities)
        if any(escaped):
            raise AssertionError(escaped)
        raise PermissionError('there are none')
    """,
}
# They end at a limit, which the parameter SANDBOX of the model sets.
LIMITS = {
    "bombs_with_forks": (
        "on,processes=40",
        """
        count = 0
        try:
            while count < 200:
                pid = os.fork()
                if pid == 0:
                    time.sleep(60)
                    os._exit(0)
                count += 1
            escaped = count
        finally:
            os.killpg(0, signal.SIGTERM)
        """,
    ),
    "fills_the_disk": (
        "on,scratch=16MiB",
        """
        with open('big', 'wb') as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
        escaped = os.path.getsize('big')
        """,
    ),
    "opens_many_files": (
        "on,files=64",
        "files = [open('/dev/null') for _ in range(200)]\nescaped = len(files)",
    ),
}
# They end with the worker.
ENDING = {
    "fills_the_memory": (
        "on,memory=1GiB",  # with many cores, libraries that models import take a third of that
        """
        blocks = []
        for _ in range(64):
            blocks.append(bytearray(os.urandom(1 << 20)) * 32)
        escaped = len(blocks)
        """,
    ),
    "writes_to_the_channel": (
        "on",
        """
        import stat
        for descriptor in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    os.write(descriptor, os.urandom(4096))
                    os.write(descriptor, bytes(4096))
            except OSError:
                pass
        time.sleep(0.2)
        escaped = 'written'
        """,
    ),
    "passes_many_sockets_to_the_server": (
        "on,files=4096",
        """
        import stat
        ours = [fd for fd in range(3, 12) if os.path.exists(f'/proc/self/fd/{fd}')]
        ours = [fd for fd in ours if stat.S_ISSOCK(os.fstat(fd).st_mode)]
        pairs = [socket.socketpair(socket.AF_UNIX, facts['kind']) for _ in range(1500)]
        for descriptor in reversed(ours):
            sock = socket.socket(fileno=os.dup(descriptor))
            try:
                for near, far in pairs:
                    socket.send_fds(sock, [b'x'], [far.fileno()])
            except OSError:
                pass
        self.pairs = pairs
        escaped = 'passed'
        """,
    ),
    "passes_files_as_standard_error": (
        "on",
        """
        import stat
        files = [open('/dev/zero'), open('a', 'w'), open('/dev/null')]
        for descriptor in range(3, 12):
            try:
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    sock = socket.socket(fileno=os.dup(descriptor))
                    for file in files:
                        socket.send_fds(sock, [facts['standard_error'].encode()], [file.fileno()])
            except OSError:
                pass
        escaped = 'passed'
        """,
    ),
    "passes_descriptors_to_the_server": (
        "on",
        """
        import stat
        for descriptor in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    sock = socket.socket(fileno=os.dup(descriptor))
                    for _ in range(20):
                        socket.send_fds(sock, [b'\\xff' * 100], [0, 1, 2])
            except OSError:
                pass
        escaped = 'passed'
        """,
    ),
}
ATTACKS = {**FILES, **SOCKETS, **PROCESSES, **KERNEL}

_MODEL = """
import json, os, resource, signal, socket, sys, tempfile, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        facts = json.loads(pb_utils.get_input_tensor_by_name(request, "FACTS").as_numpy()[0])
        try:
            report = f"escaped: {self.attack(facts)!r}"
        except (OSError, MemoryError, ImportError, pb_utils.TritonModelException) as error:
            report = f"contained: {type(error).__name__}: {error}"
        except BaseException as error:
            report = f"broken: {type(error).__name__}: {error}"
        output = pb_utils.Tensor("REPORT", np.array([report.encode()], np.object_))
        return pb_utils.InferenceResponse([output])

    def attack(self, facts):
        os.chdir(tempfile.mkdtemp())
"""
_CONFIG = """
backend: "python"
max_batch_size: 0
input [{ name: "FACTS" data_type: TYPE_STRING dims: [ 1 ] }]
output [{ name: "REPORT" data_type: TYPE_STRING dims: [ 1 ] }]
instance_group [{ kind: KIND_CPU }]
"""


def _dedented(attack: str) -> str:
    """Some attacks begin with lines that are not indented as the others are."""
    if attack.startswith(_CALL):
        return _CALL + textwrap.dedent(attack.removeprefix(_CALL))
    return textwrap.dedent(attack)


def hostile_model(attack: str, sandbox: str | None = None) -> Files:
    """The files of a model with this attack, and with a parameter SANDBOX."""
    body = textwrap.indent(_dedented(attack), " " * 8)
    parameter = f'parameters {{ key: "SANDBOX" value {{ string_value: "{sandbox}" }} }}\n'
    return {
        "1/model.py": f"{_MODEL}{body}\n        return escaped\n",
        "config.pbtxt": _CONFIG + (parameter if sandbox else ""),
    }
