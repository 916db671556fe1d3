"""Every exception that GGS raises on purpose.

    GGSError                      what a user can get wrong or a cluster can do to a job
    ├── ConfigurationError        a setting's name or value; never worth a retry
    ├── DataError                 a data set or an image that cannot be read or fetched
    ├── UnsupportedError          an optimizer, parameter or wrapper that GGS cannot work with
    ├── MismatchError             the workers do not agree on model, settings or versions
    ├── NonFiniteError            too many steps in a row had a NaN or inf gradient
    ├── DivergenceError           replicas that must be bit-identical are not
    ├── WireError                 a damaged or foreign message
    ├── EnvironmentVariableError  an OpenPAI environment variable that is missing or wrong
    ├── DeviceError               GPUs that the cluster promised to a task are not there
    ├── RendezvousError           the tasks of a job did not find each other, or lost each other
    ├── CheckpointError           a checkpoint that is damaged, foreign or cannot be written
    ├── OutOfMemoryError          a step needs more memory than the worker's device has
    └── PAIError                  what the OpenPAI server, or the way to it, answered
        ├── ServerRefusedError    the server answered, and said no; has its status and code
        └── UnreachableError      no usable answer came: network, TLS, proxy, time-out

Their messages are one line: what was found, where, and the way out.
"""


class GGSError(Exception):
    """Base of all errors that GGS raises on purpose.

    What cannot be printed on one line (line breaks, a terminal's control characters, bytes that are no
    text; users and servers put them into names and values) is written as Python writes it in a string.
    """

    def __init__(self, message: str = "") -> None:
        if not message.isprintable():
            message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)
        super().__init__(message)


class ConfigurationError(GGSError, ValueError):
    """A setting's name or value is wrong."""


class DataError(GGSError, RuntimeError):
    """A data set or one of its images cannot be read or fetched."""


class UnsupportedError(GGSError, TypeError):
    """An optimizer, parameter or wrapper cannot work with GGS."""


class MismatchError(GGSError, RuntimeError):
    """The workers of one job do not agree with each other."""


class NonFiniteError(GGSError, ArithmeticError):
    """Too many steps in a row were skipped for a NaN or an infinite gradient."""


class DivergenceError(GGSError, RuntimeError):
    """Replicas that must be bit-identical are not."""


class WireError(GGSError, ValueError):
    """A message is damaged, or comes from another version or configuration."""


class EnvironmentVariableError(GGSError, ValueError):
    """A variable of OpenPAI's environment is missing or has an impossible value."""


class DeviceError(GGSError, RuntimeError):
    """GPUs that the cluster promised to this task are not there."""


class RendezvousError(GGSError, RuntimeError):
    """The tasks of a job did not find each other in time, or a port to meet on is taken."""


class CheckpointError(GGSError, RuntimeError):
    """A checkpoint is damaged, belongs to another run, or cannot be written."""


class OutOfMemoryError(GGSError, MemoryError):
    """A step needs more memory than the worker's device has."""


class PAIError(GGSError, RuntimeError):
    """An OpenPAI server, or the way to it, refused."""


class ServerRefusedError(PAIError):
    """The server answered and refused.

    ``status`` is HTTP's, ``code`` is OpenPAI's (``ConflictJobError`` ...) or "" where it sends none.
    """

    def __init__(self, message: str, status: int, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class UnreachableError(PAIError):
    """No usable answer came: name, network, TLS, proxy, time-out or a damaged body."""
