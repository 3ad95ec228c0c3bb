"""Put this process in a sandbox: limits, one folder to write to, no network, no other process. Linux, no privileges.

Landlock (in the kernel; version 3 came with Linux 6.2) lets the process read some folders and write to one; seccomp
refuses the system calls that open a network connection, share memory or queues, start or stop a process, signal one or
look into it, watch or lock files, or change the rights of one. Neither can be undone by the process, and both hold for
root.
What they do not stop: a fault in the kernel, use of time, memory and disk up to the limits, and asking whether a file
exists, how large and how old it is.
"""

import ctypes
import os
import platform
import signal
import struct

ARCHITECTURES = {  # audit number, the number of each call that is refused, the number of capset
    "x86_64": (
        0xC000003E,
        "socket 41, socketpair 53, fork 57, vfork 58, execve 59, execveat 322, kill 62, tkill 200, tgkill 234, "
        "ptrace 101, process_vm_readv 310, process_vm_writev 311, setrlimit 160, prlimit64 302, unshare 272, "
        "setns 308, mount 165, umount2 166, pivot_root 155, chroot 161, bpf 321, perf_event_open 298, userfaultfd 323, "
        "io_uring_setup 425, pidfd_open 434, pidfd_send_signal 424, pidfd_getfd 438, keyctl 250, add_key 248, "
        "rt_sigqueueinfo 129, rt_tgsigqueueinfo 297, shmget 29, msgget 68, semget 64, setpriority 141, "
        "sched_setaffinity 203, init_module 175, finit_module 313, kexec_load 246, reboot 169, clone3 435, clone 56, "
        "chmod 90, fchmod 91, fchmodat 268, fchmodat2 452, chown 92, fchown 93, lchown 94, fchownat 260, utime 132, "
        "utimes 235, futimesat 261, utimensat 280, setxattr 188, lsetxattr 189, fsetxattr 190, removexattr 197, "
        "lremovexattr 198, fremovexattr 199, truncate 76, memfd_create 319, memfd_secret 447, sched_setparam 142, "
        "sched_setscheduler 144, sched_setattr 314, ioprio_set 251, shmat 30, shmctl 31, shmdt 67, semop 65, "
        "semctl 66, semtimedop 220, msgsnd 69, msgrcv 70, msgctl 71, inotify_init 253, inotify_add_watch 254, "
        "inotify_init1 294, fanotify_init 300, fanotify_mark 301, flock 73, fcntl 72, ioctl 16, prctl 157",
        126,
    ),
    "aarch64": (
        0xC00000B7,
        "socket 198, socketpair 199, execve 221, execveat 281, kill 129, tkill 130, tgkill 131, ptrace 117, "
        "process_vm_readv 270, process_vm_writev 271, setrlimit 164, prlimit64 261, unshare 97, setns 268, mount 40, "
        "umount2 39, pivot_root 41, chroot 51, bpf 280, perf_event_open 241, userfaultfd 282, io_uring_setup 425, "
        "pidfd_open 434, pidfd_send_signal 424, pidfd_getfd 438, keyctl 219, add_key 217, rt_sigqueueinfo 138, "
        "rt_tgsigqueueinfo 240, shmget 194, msgget 186, semget 190, setpriority 140, sched_setaffinity 122, "
        "init_module 105, finit_module 273, kexec_load 104, reboot 142, clone3 435, clone 220, "
        "fchmod 52, fchmodat 53, fchmodat2 452, fchown 55, fchownat 54, utimensat 88, setxattr 5, lsetxattr 6, "
        "fsetxattr 7, removexattr 14, lremovexattr 15, fremovexattr 16, truncate 45, memfd_create 279, "
        "memfd_secret 447, sched_setparam 118, sched_setscheduler 119, sched_setattr 274, ioprio_set 30, shmat 196, "
        "shmctl 195, shmdt 197, semop 193, semctl 191, semtimedop 192, msgsnd 189, msgrcv 188, msgctl 187, "
        "inotify_add_watch 27, inotify_init1 26, fanotify_init 262, fanotify_mark 263, flock 32, fcntl 25, ioctl 29, "
        "prctl 167",
        91,
    ),
}
CLONE_THREAD = 0x10000
# Calls that do much that is needed, and some that is refused: which argument says what, and its values.
# To name who gets a signal when a file is ready: F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP. To take memory
# outside of the limit: F_SETPIPE_SZ. To tell something to whoever opens the same file, or keep it waiting: F_GETLK,
# F_SETLK, F_SETLKW, the same three with OFD, F_SETLEASE, F_NOTIFY. To outlive the grader, or hide from it:
# PR_SET_PDEATHSIG, PR_SET_DUMPABLE.
COMMANDS = {
    "fcntl": (1, (8, 10, 15, 1031, 5, 6, 7, 36, 37, 38, 1024, 1026)),
    "ioctl": (1, (0x8901, 0x8902)),
    "prctl": (0, (1, 4)),
}
READ = 0b1100  # of Landlock's rights: read a file, read a folder
EXECUTE = 0b1  # nothing may be started anyway, but libraries are mapped
FILE_RIGHTS = 0b0100_0000_0000_0111  # the rights that make sense for a file: execute, write, read, truncate
OLDEST = 3  # of Landlock: before it, a file that may be read can be emptied by opening it


def end_with(parent):
    """From now on this process, a child of `parent`, ends with it, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def missing():
    """What this machine lacks for the sandbox, as a sentence, or None."""
    if platform.system() != "Linux":
        return f"this is {platform.system()}, and only Linux has what is needed"
    if platform.machine() not in ARCHITECTURES:
        return f"the list of system calls is known for {' and '.join(ARCHITECTURES)}, this is {platform.machine()}"
    version = max(_landlock_version(), 0)
    if version < OLDEST:
        return f"Landlock must be of version {OLDEST} or newer (Linux 6.2), and this kernel's is {version or 'off'}"
    return None


def limit(memory, seconds):
    """Hard limits: `memory` more bytes than now, `seconds` of CPU time, 64 files of 64 MiB, no core file."""
    import resource  # there is none on Windows, where `missing` names what is missing

    with open("/proc/self/statm", encoding="utf8") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limits = {
        resource.RLIMIT_AS: now + memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 64 * 2**20,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    for name, value in limits.items():
        resource.setrlimit(name, (value, value))


def enter(folder, readable):
    """From now on this process writes to `folder` alone, reads `readable` alone, and reaches nobody."""
    libc = ctypes.CDLL(None, use_errno=True)
    _call(libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
    _restrict_files(libc, folder, readable)
    nothing = struct.pack("<II", 0x20080522, 0), struct.pack("<6I", *[0] * 6)
    _call(libc.syscall(ARCHITECTURES[platform.machine()][2], *nothing))  # capset: root keeps no privilege
    _restrict_calls(libc)


def _landlock_version():
    return ctypes.CDLL(None, use_errno=True).syscall(444, None, ctypes.c_size_t(0), 1)


def _restrict_files(libc, folder, readable):
    version = _landlock_version()
    every = (1 << (15 if version < 5 else 16)) - 1  # each version's rights
    attributes = struct.pack("<Q", every)
    if version >= 6:  # seccomp refuses these already: no TCP, no abstract socket and no signal of somebody outside
        attributes = struct.pack("<QQQ", every, 0b11, 0b11)
    rules = _call(libc.syscall(444, attributes, ctypes.c_size_t(len(attributes)), 0))
    allowed = {path: READ | EXECUTE for path in readable} | {folder: every, "/dev/null": READ | 0b10}
    for path, rights in allowed.items():
        if not os.path.exists(path):
            continue
        if not os.path.isdir(path):
            rights &= FILE_RIGHTS
        number = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("<Qi", rights & every, number)
        _call(libc.syscall(445, rules, 1, rule, 0))
        os.close(number)
    _call(libc.syscall(446, rules, 0))
    os.close(rules)


def _restrict_calls(libc):
    audit, names, _ = ARCHITECTURES[platform.machine()]
    numbers = {name: int(number) for name, number in (entry.split() for entry in names.split(", "))}
    clone, clone3 = numbers.pop("clone"), numbers.pop("clone3")
    partly = [(numbers.pop(name), *refused) for name, refused in COMMANDS.items()]
    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    refuse, absent, allow, kill = 0x50000 | 1, 0x50000 | 38, 0x7FFF0000, 0x80000000  # EPERM; ENOSYS
    program = [(load, 0, 0, 4), (equal, 1, 0, audit), (answer, 0, 0, kill), (load, 0, 0, 0)]
    program += [(at_least, 0, 1, 0x40000000), (answer, 0, 0, kill)]  # the calls of another convention
    program += [(equal, 0, 1, clone3), (answer, 0, 0, absent)]  # the C library then uses clone
    for number in numbers.values():
        program += [(equal, 0, 1, number), (answer, 0, 0, refuse)]
    for number, argument, commands in partly:
        count = len(commands)
        program += [(equal, 0, count + 3, number), (load, 0, 0, 16 + 8 * argument)]
        program += [(equal, count - number, 0, command) for number, command in enumerate(commands)]
        program += [(answer, 0, 0, allow), (answer, 0, 0, refuse)]
    # A thread may be started, a process may not: look at the flags, the first argument.
    program += [(equal, 0, 3, clone), (load, 0, 0, 16), (any_bit, 1, 0, CLONE_THREAD), (answer, 0, 0, refuse)]
    program += [(answer, 0, 0, allow)]
    instructions = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    memory = ctypes.create_string_buffer(instructions)
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(memory))
    _call(libc.prctl(22, 2, header, 0, 0))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _call(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
