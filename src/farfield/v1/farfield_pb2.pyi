from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_FRAGMENT: _ClassVar[Kind]
    KIND_CREDIT: _ClassVar[Kind]
    KIND_ANNOUNCEMENT: _ClassVar[Kind]
    KIND_HEARTBEAT: _ClassVar[Kind]
    KIND_DEAD: _ClassVar[Kind]

class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[Dtype]
    DTYPE_BOOL: _ClassVar[Dtype]
    DTYPE_INT8: _ClassVar[Dtype]
    DTYPE_INT16: _ClassVar[Dtype]
    DTYPE_INT32: _ClassVar[Dtype]
    DTYPE_INT64: _ClassVar[Dtype]
    DTYPE_UINT8: _ClassVar[Dtype]
    DTYPE_UINT16: _ClassVar[Dtype]
    DTYPE_UINT32: _ClassVar[Dtype]
    DTYPE_UINT64: _ClassVar[Dtype]
    DTYPE_FLOAT16: _ClassVar[Dtype]
    DTYPE_FLOAT32: _ClassVar[Dtype]
    DTYPE_FLOAT64: _ClassVar[Dtype]
KIND_UNSPECIFIED: Kind
KIND_FRAGMENT: Kind
KIND_CREDIT: Kind
KIND_ANNOUNCEMENT: Kind
KIND_HEARTBEAT: Kind
KIND_DEAD: Kind
DTYPE_UNSPECIFIED: Dtype
DTYPE_BOOL: Dtype
DTYPE_INT8: Dtype
DTYPE_INT16: Dtype
DTYPE_INT32: Dtype
DTYPE_INT64: Dtype
DTYPE_UINT8: Dtype
DTYPE_UINT16: Dtype
DTYPE_UINT32: Dtype
DTYPE_UINT64: Dtype
DTYPE_FLOAT16: Dtype
DTYPE_FLOAT32: Dtype
DTYPE_FLOAT64: Dtype

class Column(_message.Message):
    __slots__ = ("name", "dtype", "shape", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: Dtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[Dtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Fragment(_message.Message):
    __slots__ = ("length", "schema", "kind", "run", "stream", "seq", "version", "attempt", "spec", "decision", "policy", "actor", "source", "columns")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    length: int
    schema: int
    kind: Kind
    run: str
    stream: bytes
    seq: int
    version: int
    attempt: int
    spec: bytes
    decision: int
    policy: str
    actor: str
    source: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, length: _Optional[int] = ..., schema: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., run: _Optional[str] = ..., stream: _Optional[bytes] = ..., seq: _Optional[int] = ..., version: _Optional[int] = ..., attempt: _Optional[int] = ..., spec: _Optional[bytes] = ..., decision: _Optional[int] = ..., policy: _Optional[str] = ..., actor: _Optional[str] = ..., source: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("length", "schema", "kind", "run", "stream", "n", "reward", "mode", "id")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[Credit.Mode]
        MODE_ADD: _ClassVar[Credit.Mode]
        MODE_SET: _ClassVar[Credit.Mode]
    MODE_UNSPECIFIED: Credit.Mode
    MODE_ADD: Credit.Mode
    MODE_SET: Credit.Mode
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    length: int
    schema: int
    kind: Kind
    run: str
    stream: bytes
    n: int
    reward: float
    mode: Credit.Mode
    id: str
    def __init__(self, length: _Optional[int] = ..., schema: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., run: _Optional[str] = ..., stream: _Optional[bytes] = ..., n: _Optional[int] = ..., reward: _Optional[float] = ..., mode: _Optional[_Union[Credit.Mode, str]] = ..., id: _Optional[str] = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("length", "schema", "kind", "version", "full", "settled", "tensors")
    class Settled(_message.Message):
        __slots__ = ("stream", "fragments")
        STREAM_FIELD_NUMBER: _ClassVar[int]
        FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
        stream: bytes
        fragments: int
        def __init__(self, stream: _Optional[bytes] = ..., fragments: _Optional[int] = ...) -> None: ...
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    length: int
    schema: int
    kind: Kind
    version: bytes
    full: bool
    settled: _containers.RepeatedCompositeFieldContainer[Announcement.Settled]
    tensors: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, length: _Optional[int] = ..., schema: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., version: _Optional[bytes] = ..., full: _Optional[bool] = ..., settled: _Optional[_Iterable[_Union[Announcement.Settled, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("length", "schema", "kind", "actor", "pid", "stream", "steps", "fragments", "version", "waiting", "backend")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    length: int
    schema: int
    kind: Kind
    actor: str
    pid: int
    stream: bytes
    steps: int
    fragments: int
    version: int
    waiting: bool
    backend: str
    def __init__(self, length: _Optional[int] = ..., schema: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., actor: _Optional[str] = ..., pid: _Optional[int] = ..., stream: _Optional[bytes] = ..., steps: _Optional[int] = ..., fragments: _Optional[int] = ..., version: _Optional[int] = ..., waiting: _Optional[bool] = ..., backend: _Optional[str] = ...) -> None: ...

class Dead(_message.Message):
    __slots__ = ("length", "schema", "kind", "reason", "sender", "time", "size", "payload")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    length: int
    schema: int
    kind: Kind
    reason: str
    sender: str
    time: float
    size: int
    payload: bytes
    def __init__(self, length: _Optional[int] = ..., schema: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., reason: _Optional[str] = ..., sender: _Optional[str] = ..., time: _Optional[float] = ..., size: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("messages",)
    class Message(_message.Message):
        __slots__ = ("topic", "key", "payload")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        KEY_FIELD_NUMBER: _ClassVar[int]
        PAYLOAD_FIELD_NUMBER: _ClassVar[int]
        topic: str
        key: str
        payload: bytes
        def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[AppendRequest.Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[AppendRequest.Message, _Mapping]]] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("settled", "errors")
    class Error(_message.Message):
        __slots__ = ("index", "kind", "text")
        INDEX_FIELD_NUMBER: _ClassVar[int]
        KIND_FIELD_NUMBER: _ClassVar[int]
        TEXT_FIELD_NUMBER: _ClassVar[int]
        index: int
        kind: str
        text: str
        def __init__(self, index: _Optional[int] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    settled: int
    errors: _containers.RepeatedCompositeFieldContainer[AppendReply.Error]
    def __init__(self, settled: _Optional[int] = ..., errors: _Optional[_Iterable[_Union[AppendReply.Error, _Mapping]]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("topic", "after", "part", "of")
    class AfterEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    topic: str
    after: _containers.ScalarMap[int, int]
    part: int
    of: int
    def __init__(self, topic: _Optional[str] = ..., after: _Optional[_Mapping[int, int]] = ..., part: _Optional[int] = ..., of: _Optional[int] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("records", "cursor")
    class Record(_message.Message):
        __slots__ = ("payload", "key", "partition", "offset")
        PAYLOAD_FIELD_NUMBER: _ClassVar[int]
        KEY_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        payload: bytes
        key: str
        partition: int
        offset: int
        def __init__(self, payload: _Optional[bytes] = ..., key: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    class CursorEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[ReadReply.Record]
    cursor: _containers.ScalarMap[int, int]
    def __init__(self, records: _Optional[_Iterable[_Union[ReadReply.Record, _Mapping]]] = ..., cursor: _Optional[_Mapping[int, int]] = ...) -> None: ...

class NoteRequest(_message.Message):
    __slots__ = ("topic", "group", "cursor")
    class CursorEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    cursor: _containers.ScalarMap[int, int]
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., cursor: _Optional[_Mapping[int, int]] = ...) -> None: ...

class NoteReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Hello(_message.Message):
    __slots__ = ("run", "policy", "spec", "client", "library", "protocol", "config")
    RUN_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    LIBRARY_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    run: str
    policy: str
    spec: bytes
    client: str
    library: str
    protocol: int
    config: bytes
    def __init__(self, run: _Optional[str] = ..., policy: _Optional[str] = ..., spec: _Optional[bytes] = ..., client: _Optional[str] = ..., library: _Optional[str] = ..., protocol: _Optional[int] = ..., config: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("run", "spec", "seed", "steps", "window", "quota", "limit", "credit_window", "version", "library", "created")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_WINDOW_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LIBRARY_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    run: str
    spec: bytes
    seed: int
    steps: int
    window: int
    quota: int
    limit: int
    credit_window: float
    version: int
    library: str
    created: bool
    def __init__(self, run: _Optional[str] = ..., spec: _Optional[bytes] = ..., seed: _Optional[int] = ..., steps: _Optional[int] = ..., window: _Optional[int] = ..., quota: _Optional[int] = ..., limit: _Optional[int] = ..., credit_window: _Optional[float] = ..., version: _Optional[int] = ..., library: _Optional[str] = ..., created: _Optional[bool] = ...) -> None: ...

class Up(_message.Message):
    __slots__ = ("hello", "payloads", "probe")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    probe: bytes
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., payloads: _Optional[_Iterable[bytes]] = ..., probe: _Optional[bytes] = ...) -> None: ...

class Down(_message.Message):
    __slots__ = ("welcome", "owned", "refusals", "settled")
    class Refusal(_message.Message):
        __slots__ = ("index", "kind", "text")
        INDEX_FIELD_NUMBER: _ClassVar[int]
        KIND_FIELD_NUMBER: _ClassVar[int]
        TEXT_FIELD_NUMBER: _ClassVar[int]
        index: int
        kind: str
        text: str
        def __init__(self, index: _Optional[int] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    owned: int
    refusals: _containers.RepeatedCompositeFieldContainer[Down.Refusal]
    settled: _containers.RepeatedCompositeFieldContainer[Announcement.Settled]
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., owned: _Optional[int] = ..., refusals: _Optional[_Iterable[_Union[Down.Refusal, _Mapping]]] = ..., settled: _Optional[_Iterable[_Union[Announcement.Settled, _Mapping]]] = ...) -> None: ...

class VersionsRequest(_message.Message):
    __slots__ = ("hello", "have")
    class HaveEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    have: _containers.ScalarMap[str, bytes]
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., have: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class VersionsReply(_message.Message):
    __slots__ = ("announcement",)
    ANNOUNCEMENT_FIELD_NUMBER: _ClassVar[int]
    announcement: bytes
    def __init__(self, announcement: _Optional[bytes] = ...) -> None: ...

class ActRequest(_message.Message):
    __slots__ = ("hello", "id", "observations", "memory", "stream", "decision")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    id: int
    observations: _containers.RepeatedCompositeFieldContainer[Column]
    memory: _containers.RepeatedCompositeFieldContainer[Column]
    stream: bytes
    decision: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., id: _Optional[int] = ..., observations: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., memory: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., stream: _Optional[bytes] = ..., decision: _Optional[int] = ...) -> None: ...

class ActReply(_message.Message):
    __slots__ = ("id", "actions", "memory", "log_prob", "version", "attempt", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: int
    actions: _containers.RepeatedCompositeFieldContainer[Column]
    memory: _containers.RepeatedCompositeFieldContainer[Column]
    log_prob: Column
    version: int
    attempt: int
    error: str
    def __init__(self, id: _Optional[int] = ..., actions: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., memory: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., log_prob: _Optional[_Union[Column, _Mapping]] = ..., version: _Optional[int] = ..., attempt: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class CreditRequest(_message.Message):
    __slots__ = ("hello", "payloads")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., payloads: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CreditReply(_message.Message):
    __slots__ = ("owned",)
    OWNED_FIELD_NUMBER: _ClassVar[int]
    owned: int
    def __init__(self, owned: _Optional[int] = ...) -> None: ...
