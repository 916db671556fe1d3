"""Which environment variables a text for the public may show.

    shown_variables(os.environ)                        # those that matter to a training
    public_value("HTTP_PROXY", "http://ada:secret@proxy:1/")   # http://proxy:1, credentials not shown

No rule can tell a secret by its looks or its name. So a value is shown only where the name is known to be
harmless *and* the value has the form that this name's values have; of anything else, only its length.
"""

import re
from collections.abc import Mapping

from ggs.launch import pai_names
from ggs.text import shorten

LONGEST = 200
"""Characters of a variable's value that are shown."""

_MATTERS = re.compile(
    r"(PAI|FC|GGS|NCCL|RCCL|GLOO|CUDA|NVIDIA|HIP|ROCR|AMD|TORCH|OMP|MKL|UCX|MASTER)_\w+|"
    r"LD_LIBRARY_PATH|LD_PRELOAD|(HTTPS?|NO|ALL)_PROXY",
    re.IGNORECASE,
)
_URL_NAMES = re.compile(r"(?i:(HTTPS?|ALL)_PROXY)|PAI_DEFAULT_FS_URI|TORCH_INDEX_URL")
# With a second @, or one behind a slash, it is uncertain where the host begins: no match.
_URL = re.compile(
    r"(?P<scheme>https?|socks[45][ah]?|hdfs|tcp)://(?P<user>[^@/?#\\\s]*@)?"
    r"(?P<server>([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)(?P<rest>([/?#][^@]*)?)"
)

# Forms of values. None has an @ and, but for the first character of an interface, a =. Each reads a text
# in one way only: with two, a long list that does not fit would take for ever.
_NUMBER = r"-?\d{1,20}"
_NUMBERS = rf"{_NUMBER}(,{_NUMBER})*"
_WORD = r"[\w.+-]{1,64}"
_WORDS = rf"\^?{_WORD}(,{_WORD})*"
_NAME = r"[A-Za-z_]\w{0,254}"
_ID = r"[\w.~-]{1,255}"
_IP = r"[0-9A-Fa-f:.]{2,45}"
_HOST = rf"({_IP}|[\w.-]{{1,255}})"
_PORTS = r"\d{1,5}(,\d{1,5})*"
_PATH = r"/[\w.+/-]*"
_LIBRARIES = rf"({_PATH}|lib[\w.+-]+)?([: ]({_PATH}|lib[\w.+-]+)?)*"
_INTERFACES = r"[\^=]{0,2}[\w.-]{1,15}(:\d+)?(,[\^=]?[\w.-]{1,15}(:\d+)?)*"
_EXEMPT = (
    r"([\w.*-]{1,255}(:\d{1,5})?|[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{0,40})(/\d{1,3})?"
)
_DEVICE = r"(all|none|void|-?\d{1,4}|(GPU|MIG)(-GPU)?-[0-9a-f/-]{1,64})"

_OPENPAI: dict[pai_names.Form, str] = {
    "identifier": _ID,
    "role": _NAME,
    "roles": rf"{_NAME}(,{_NAME})*",
    "number": _NUMBER,
    "numbers": rf"{_NUMBER}(,{_NUMBER}){{3}}",
    "address": rf"None|{_IP}",
    "ports": _PORTS,
    "labelled ports": rf"\w{{1,255}}:{_PORTS}(;\w{{1,255}}:{_PORTS})*;?",
    "task list": r"\w{1,255}:\d{1,5}(,\w{1,255}:\d{1,5})*",
    "endpoints": rf"{_IP}:\d{{1,5}}(,{_IP}:\d{{1,5}})*",
    "path": _PATH,
}
_KNOWN: tuple[tuple[str, str], ...] = (
    *(
        (_OPENPAI[form], pai_names.pattern(name))
        for name, form in pai_names.FORMS.items()
        if form in _OPENPAI
    ),
    # The launcher's, and ours.
    (
        _NUMBER,
        r"((LOCAL|GROUP|ROLE|NODE)_)?RANK|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|NNODES|MASTER_PORT",
    ),
    (_HOST, r"MASTER_ADDR"),
    (_WORD, r"TORCHELASTIC_(RUN_ID|RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE)|GGS_BACKEND"),
    # GPUs.
    (rf"{_DEVICE}(,{_DEVICE})*", r"(CUDA|NVIDIA|HIP|ROCR|AMD|HIVED)_VISIBLE_DEVICES"),
    (_WORDS, r"CUDA_(VERSION|DEVICE_ORDER|MODULE_LOADING)|NVIDIA_DRIVER_CAPABILITIES"),
    (_NUMBER, r"CUDA_(LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS)|HIP_LAUNCH_BLOCKING"),
    (_PATH, r"(CUDA|TORCH)_HOME"),
    (r"\d{1,2}\.\d[af]?(\+PTX)?([; ]\d{1,2}\.\d[af]?(\+PTX)?)*", r"TORCH_CUDA_ARCH_LIST"),
    # PyTorch.
    (_WORD, r"TORCH_(VERSION|DISTRIBUTED_DEBUG|CPP_LOG_LEVEL|SHOW_CPP_STACKTRACES|USE_CUDA_DSA)"),
    (
        _NUMBER,
        r"(TORCH_)?NCCL_(BLOCKING_WAIT|ASYNC_ERROR_HANDLING)|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|"
        r"TORCH_NCCL_(AVOID_RECORD_STREAMS|DUMP_ON_TIMEOUT|ENABLE_MONITORING|ENABLE_TIMING|"
        r"HEARTBEAT_TIMEOUT_SEC|HIGH_PRIORITY|TRACE_BUFFER_SIZE|USE_COMM_NONBLOCKING)",
    ),
    # NCCL, RCCL, gloo, UCX.
    (_INTERFACES, r"(NCCL|GLOO)_SOCKET_IFNAME|NCCL_IB_HCA|UCX_NET_DEVICES"),
    (
        _WORDS,
        r"NCCL_(ALGO|PROTO|DEBUG|DEBUG_SUBSYS|LAUNCH_MODE|NET|NET_PLUGIN|TUNER_PLUGIN|NET_GDR_LEVEL|"
        r"P2P_LEVEL|SOCKET_FAMILY|VERSION)|GLOO_DEVICE_TRANSPORT|UCX_(TLS|LOG_LEVEL)",
    ),
    (
        _NUMBER,
        r"NCCL_(BUFFSIZE|CHECKS_DISABLE|CHECK_POINTERS|COLLNET_ENABLE|COMM_BLOCKING|CROSS_NIC|"
        r"CUMEM_ENABLE|CUMEM_HOST_ENABLE|DMABUF_ENABLE|GRAPH_MIXING_SUPPORT|IGNORE_CPU_AFFINITY|"
        r"(MIN|MAX)_(CTAS|NCHANNELS)|NET_GDR_READ|NSOCKS_PERTHREAD|NTHREADS|NVB_DISABLE|NVLS_ENABLE|"
        r"P2P_DISABLE|P2P_PXN_LEVEL|PXN_DISABLE|RUNTIME_CONNECT|SET_STACK_SIZE|SHM_DISABLE|"
        r"SOCKET_NTHREADS|WORK_FIFO_DEPTH)|RCCL_MSCCL(PP)?_ENABLE",
    ),
    (
        _NUMBER,
        r"NCCL_IB_(ADAPTIVE_ROUTING|AR_THRESHOLD|CUDA_SUPPORT|DISABLE|GID_INDEX|MERGE_NICS|"
        r"PCI_RELAXED_ORDERING|QPS_PER_CONNECTION|RETRY_CNT|SL|SPLIT_DATA_ON_QPS|TC|TIMEOUT)",
    ),
    (_PATH, r"NCCL_(CONF|GRAPH|TOPO)_FILE"),
    (rf"{_HOST}:\d{{1,5}}", r"NCCL_COMM_ID"),
    # Threads and libraries.
    (_NUMBERS, r"(OMP|MKL)_NUM_THREADS|OMP_(MAX_ACTIVE_LEVELS|THREAD_LIMIT)|MKL_DEBUG_CPU_TYPE"),
    (_WORDS, r"OMP_(DYNAMIC|PROC_BIND|SCHEDULE|STACKSIZE|WAIT_POLICY)"),
    (r"[a-z_]{4,12}(\(\d+\))?|[\d{}:,-]{1,64}", r"OMP_PLACES"),
    (_WORDS, r"MKL_(CBWR|DYNAMIC|ENABLE_INSTRUCTIONS|INTERFACE_LAYER|THREADING_LAYER)"),
    (_LIBRARIES, r"LD_LIBRARY_PATH|LD_PRELOAD"),
    (rf"{_EXEMPT}(, ?{_EXEMPT})*", r"(?i:NO_PROXY)"),
)
_FORMS = tuple((re.compile(names, re.ASCII), re.compile(form, re.ASCII)) for form, names in _KNOWN)


def shown_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to a training, sorted by name, each as :func:`public_value`."""
    return {
        name: public_value(name, text)
        for name, text in sorted(variables.items())
        if _MATTERS.fullmatch(name) or is_known(name)
    }


def is_known(name: str) -> bool:
    """Whether the name is one of those whose values are harmless, in their usual form."""
    return _form(name) is not None or _URL_NAMES.fullmatch(name) is not None


def is_harmless(name: str, text: str) -> bool:
    """Whether the value can be shown as it is. Nothing can be learnt from an empty one."""
    form = _form(name)
    return not text or (form is not None and form.fullmatch(text) is not None)


def public_value(name: str, text: str) -> str:
    """What may be shown: a harmless value, a URL without its credentials and path, or only the length."""
    if is_harmless(name, text):
        return shorten(text, LONGEST)
    if not is_known(name):
        return f"set, {len(text)} characters, not shown: not known to be harmless"
    url = _URL.fullmatch(text) if _URL_NAMES.fullmatch(name) else None
    if url is None:
        return f"set, {len(text)} characters, not shown: not of the usual form"
    server = f"{url['scheme']}://{url['server']}"
    server += ", credentials not shown" if url["user"] else ""
    return server + (", path not shown" if url["rest"].strip("/") else "")


def _form(name: str) -> re.Pattern[str] | None:
    return next((form for names, form in _FORMS if names.fullmatch(name)), None)
