"""Exit codes and logs, and what OpenPAI 1.8.1 makes of them."""

import pytest

from ggs.pai.local.exit_spec import SEARCHED_LOG_BYTES, Reaction, classify

ALWAYS, UP_TO, NEVER = Reaction.ALWAYS, Reaction.UP_TO_RETRY_COUNT, Reaction.NEVER


@pytest.mark.parametrize(
    ("user_code", "log", "code", "reaction"),
    [
        *((code, "", 255, UP_TO) for code in (1, 2, 3, 10, 75, 124, 126, 128, 129, 200, 250, 255)),
        *((code, "", code, ALWAYS) for code in (130, 131, 137, 143)),
        *((code, "", code, NEVER) for code in (132, 135, 136, 141)),
        *((code, "", code, UP_TO) for code in (134, 139)),
        (127, "", 255, UP_TO),
        (127, "user.sh: line 6: pyhton: command not found", 220, NEVER),
        (1, "user.sh: line 6: pyhton: command not found", 255, UP_TO),
        (1, "tf: RAN OUT OF MEMORY TRYING TO ALLOCATE 2 GiB", 221, NEVER),
        (1, "Signal code: Address not mapped (1)", 222, NEVER),
        (1, "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error", 223, ALWAYS),
        (1, "CUDA driver version is insufficient for CUDA runtime version", 224, NEVER),
        (1, "cuda runtime error 2 : out of memory at x.cu", 226, NEVER),
        (1, "cuda runtime error (2) : out of memory at x.cu", 255, UP_TO),  # OpenPAI's slip
        (2, "OSError: Invalid argument: 'x'", 228, NEVER),
        (1, "TypeError: dynamic_rnn got multiple values for keyword argument", 228, NEVER),
        (1, "bad argument #2 to '?'", 228, NEVER),
        (1, "Option -start_symbol has no default value", 228, NEVER),
        (1, "UnicodeDecodeError: 'utf-8' codec", 229, NEVER),
        (1, "bash: bd5/bd5_bar-train.ids: No such file", 229, NEVER),
        (1, "FileNotFoundError: e No such file or directory", 229, NEVER),  # its slip again
        (1, "Exception: unknown text header name 'x'", 229, NEVER),
        (1, "Exception: unknown label header name 'x'", 229, NEVER),
        (1, "utils.lua:5: x: Input/output error", 229, NEVER),
        (1, "tensorflow.python.framework.errors.UnknownError: x: Input/output error", 229, NEVER),
        (1, "cp: failed to close 'x': Input/output error", 229, NEVER),
        (1, "Exception occurred: x Input/output error", 229, NEVER),
        (1, "/torch/install/share/lua/5.1/x.c:3: exception", 231, NEVER),
        (1, "AttributeError: 'Net' object has no attribute 'foo'", 231, NEVER),
        (1, "NameError: name 'x' is not defined", 231, NEVER),
        (1, "a handled ImportError: no harm\nthen another failure", 232, NEVER),
        (1, "IndexError: list index out of range", 233, NEVER),
        (1, "Segmentation fault", 234, NEVER),
        (1, "Aborted (core dumped)", 235, NEVER),
        # The lower number wins where two rules match.
        (1, "Segmentation fault (core dumped)", 234, NEVER),
        # A signal's code beats the text, for 130 to 143.
        (134, "Aborted (core dumped)", 134, UP_TO),
        (137, "ImportError: x", 137, ALWAYS),
        # Not in OpenPAI's list.
        (1, "ModuleNotFoundError: No module named 'x'", 255, UP_TO),
        (1, "FileNotFoundError: [Errno 2] No such file or directory: 'x'", 255, UP_TO),
        (1, "torch.OutOfMemoryError: CUDA out of memory.", 255, UP_TO),
        (1, "RuntimeError: NCCL error in: x", 255, UP_TO),
        (2, "train.py: error: unrecognized arguments: --x", 255, UP_TO),
    ],
)
def test_a_failure(user_code: int, log: str, code: int, reaction: Reaction) -> None:
    verdict = classify(user_code, log)
    assert (verdict.code, verdict.reaction) == (code, reaction)
    assert not verdict.succeeded


def test_success_beats_any_log() -> None:
    assert classify(0, "ImportError: x").succeeded


def test_memory_limit_beats_the_code_of_the_kill() -> None:
    verdict = classify(137, "", out_of_memory=True)
    assert (verdict.code, verdict.reaction) == (-1200, NEVER)


def test_only_the_end_of_a_long_log_counts() -> None:
    lines = "step\n" * (SEARCHED_LOG_BYTES // 5)
    assert classify(1, "ImportError: x\n" + lines[:-100]).code == 232
    assert classify(1, "ImportError: x\n" + lines).code == 255
    assert classify(1, lines + "ImportError: x\n").code == 232


@pytest.mark.parametrize(
    ("user_code", "log", "sentence"),
    [
        (137, "", "exit code 137, SIGKILL: OpenPAI always retries it, uncounted"),
        (132, "", "exit code 132, SIGILL: OpenPAI never retries it"),
        (
            1,
            "ImportError: x",
            "exit code 1 (shown as 232), the log contains 'importerror:': OpenPAI never retries it",
        ),
        (
            5,
            "",
            "exit code 5 (shown as 255), a failure that OpenPAI does not know: "
            "OpenPAI retries it up to jobRetryCount times",
        ),
        (0, "", "exit code 0: succeeded"),
    ],
)
def test_the_sentence(user_code: int, log: str, sentence: str) -> None:
    assert str(classify(user_code, log)) == sentence
