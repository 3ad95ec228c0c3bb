"""Run a reader's code under watch: it ends in time, prints no flood, and leaves torch as it was.

The code runs in the thread that asks for it, in the same process, so that it sees the notebook as it is and the
notebook stays as it is when the code is stopped.
"""

import contextlib
import ctypes
import io
import signal
import sys
import threading
import time
import warnings

import torch

AGAIN = 0.02  # seconds until the next try, where code catches what should stop it


class TimeUp(BaseException):
    """The time is over. No Exception, so that `except Exception` in the reader's code does not catch it."""


def within(seconds, work):
    """work(), stopped by TimeUp after that many seconds.

    In the main thread of Linux and macOS a timer signal stops it: a loop, a sleep, a wait for input. On Windows, and
    in other threads, a watching thread raises TimeUp there: that stops loops, unless they catch everything; a
    sleep ends first. Neither can stop a single call into C that never comes back.
    """
    main = threading.current_thread() is threading.main_thread()
    return (_by_alarm if main and hasattr(signal, "setitimer") else _by_watcher)(seconds, work)


def _by_alarm(seconds, work):
    running, rings, tracer = True, 0, sys.gettrace()

    def ring(number, frame):
        nonlocal rings
        if running:
            rings += 1
            if rings > 1:  # the code has caught the first one
                _raise_in_handlers(frame)
            raise TimeUp

    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, ring)
    left = interval = 0
    try:
        try:
            left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
            return work()
        finally:
            running = False  # the alarm may ring once more before it is off
    finally:
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.settrace(tracer)
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)
        if left:  # somebody else's alarm, as in a check within a check
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - started), 0.001), interval)


def _raise_in_handlers(frame):
    """Raise TimeUp once more where the next exception is caught: `while True: try: ... except: pass` ends that way."""
    caught = False

    def trace(frame, event, argument):
        nonlocal caught
        if caught and event == "line":
            raise TimeUp
        caught = event == "exception"
        return trace

    sys.settrace(trace)
    while frame is not None and frame.f_code is not _by_alarm.__code__:
        frame.f_trace = trace
        frame = frame.f_back


def _by_watcher(seconds, work):
    # TimeUp may arrive between any two steps, so they are single ones: lists that get an entry, no locks, no events.
    begun, finished, ended = [], [], []
    thread = ctypes.c_ulong(threading.get_ident())

    def watch():
        while not begun:
            time.sleep(AGAIN / 10)
        last = time.monotonic() + seconds
        while not finished:
            if time.monotonic() > last:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeUp))
            time.sleep(AGAIN)
        ended.append(True)

    threading.Thread(target=watch, daemon=True).start()
    try:
        begun.append(True)
        return work()
    finally:
        while True:
            try:
                while not ended:  # until then TimeUp may arrive late: here, and not in the code behind
                    finished.append(True)
                    time.sleep(AGAIN / 10)
                break
            except TimeUp:
                continue


class Printed(io.TextIOBase):
    """Passes on the first `most` characters that are written before it is `over`, and counts all.

    Attributes:
        first: the characters written before it was over. count: those written at any time.
    """

    def __init__(self, target, most):
        self.target, self.most, self.over, self.first, self.count = target, most, False, 0, 0

    def write(self, text):
        self.count += len(text)
        if not self.over:
            room = max(self.most - self.first, 0)
            self.first += len(text)
            if room:
                self.target.write(text[:room])
        return len(text)

    def flush(self):
        self.target.flush()


@contextlib.contextmanager
def printing_to(printed):
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        yield


@contextlib.contextmanager
def warnings_to(warned):
    """Inside, warnings are not printed: the text of the first one goes into the list `warned`."""

    def note(message, category, filename, lineno, file=None, line=None):
        if not warned:
            warned.append(str(message))

    with warnings.catch_warnings():  # it also forgets which ones were shown before
        before, warnings.showwarning = warnings.showwarning, note
        try:
            yield
        finally:
            warnings.showwarning = before


SETTINGS = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "whether gradients are recorded": (torch.is_grad_enabled, torch.set_grad_enabled),
    "the default device": (torch.get_default_device, torch.set_default_device),
}


@contextlib.contextmanager
def on_the_cpu():
    """Inside, tensors are made on the CPU, whatever the notebook has set; its random state stays as it is."""
    device = torch.get_default_device()
    try:
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            yield
    finally:
        if torch.get_default_device() != device:
            torch.set_default_device(device)


@contextlib.contextmanager
def unchanged_torch(seed):
    """Inside, torch draws from `seed`; afterwards its settings and its random state are as before.

    Gives a list that holds, afterwards, the names of the settings that were changed.
    """
    changed, generator = [], torch.default_generator
    before, state = {name: get() for name, (get, _) in SETTINGS.items()}, generator.get_state()
    generator.manual_seed(seed)
    try:
        yield changed
    finally:
        if generator.initial_seed() != seed:
            changed.append("the seed of torch")
        generator.set_state(state)
        for name, (get, put) in SETTINGS.items():
            if get() != before[name]:
                changed.append(name)
                put(before[name])


@contextlib.contextmanager
def calls_of(forbidden):
    """Gives a list that holds, afterwards, those of the functions and classes that were called in this thread."""
    codes = {_code(thing): thing for thing in forbidden}
    called, before = [], sys.getprofile()

    def notice(frame, event, argument):
        thing = codes.get(frame.f_code) if event == "call" else None
        if thing is not None and thing not in called:
            called.append(thing)

    sys.setprofile(notice if codes else before)
    try:
        yield called
    finally:
        sys.setprofile(before)


def _code(thing):
    return (thing.__init__ if isinstance(thing, type) else thing).__code__
