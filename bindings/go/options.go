// Options of loading a model, and how they go to C.

package llamabi

// #include <llamabi.h>
import "C"

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unsafe"
)

// Device is where a model runs.
type Device int32

// The devices.
const (
	DeviceAuto Device = C.LLAMA_DEVICE_AUTO
	DeviceCPU  Device = C.LLAMA_DEVICE_CPU
	DeviceCUDA Device = C.LLAMA_DEVICE_CUDA
)

// Precision is how exactly the CPU multiplies.
type Precision int32

// The precisions. Full rounds activations so little that it does not show; fast has the fastest
// arithmetic of the processor, for many sequences. PrecisionAuto: full, but if more than eight
// sequences may run at the same time (twelve for quantised weights with AMX), generated rows are
// multiplied as those of prompts are.
const (
	PrecisionAuto Precision = C.LLAMA_PRECISION_AUTO
	PrecisionFull Precision = C.LLAMA_PRECISION_FULL
	PrecisionFast Precision = C.LLAMA_PRECISION_FAST
)

// Dtype is how numbers are stored.
type Dtype int32

// Dtypes of llamabi.h. DtypeAuto: weights as stored in the checkpoint, the KV cache to suit them.
const (
	DtypeAuto  Dtype = C.LLAMA_DTYPE_AUTO
	DtypeF32   Dtype = C.LLAMA_DTYPE_F32
	DtypeF16   Dtype = C.LLAMA_DTYPE_F16
	DtypeBF16  Dtype = C.LLAMA_DTYPE_BF16
	DtypeInt8  Dtype = C.LLAMA_DTYPE_INT8
	DtypeInt4  Dtype = C.LLAMA_DTYPE_INT4
	DtypeNF4   Dtype = C.LLAMA_DTYPE_NF4
	DtypeFP8   Dtype = C.LLAMA_DTYPE_FP8
	DtypeK4    Dtype = C.LLAMA_DTYPE_K4    // in Info only
	DtypeK8    Dtype = C.LLAMA_DTYPE_K8    // in Info only
	DtypeK5    Dtype = C.LLAMA_DTYPE_K5    // in Info only
	DtypeK6    Dtype = C.LLAMA_DTYPE_K6    // in Info only
	DtypeIQ4   Dtype = C.LLAMA_DTYPE_IQ4   // in Info only
	DtypeUint4 Dtype = C.LLAMA_DTYPE_UINT4 // in Info only
)

// End of dtypes

// LogLevel is how severe a log line is; lower is more severe.
type LogLevel int32

// The log levels.
const (
	LogError LogLevel = C.LLAMA_LOG_ERROR
	LogWarn  LogLevel = C.LLAMA_LOG_WARN
	LogInfo  LogLevel = C.LLAMA_LOG_INFO
	LogDebug LogLevel = C.LLAMA_LOG_DEBUG
)

// Option changes how [Open] loads a model.
type Option func(*buildOptions)

type buildOptions struct {
	c         C.llama_build_options
	tokenizer string
	template  string
	draft     string
	medusa    string
	adapters  []string
	scales    []float32
	devices   []C.int32_t
	progress  func(float32) bool
	log       func(LogLevel, string)
	err       error
}

// path is a path for C.
func (o *buildOptions) path(name, path string) *C.char {
	if strings.ContainsRune(path, 0) && o.err == nil {
		o.err = invalid("%s %q contains a NUL", name, path)
	}
	return (*C.char)(unsafe.Pointer(unsafe.SliceData(append([]byte(path), 0))))
}

// WithTokenizer names the tokenizer's file.
func WithTokenizer(path string) Option { return func(o *buildOptions) { o.tokenizer = path } }

// WithMaxSeqLen sets the most tokens of a sequence, prompt included. 512.
func WithMaxSeqLen(n int) Option {
	return func(o *buildOptions) {
		o.c.max_seq_len = number[C.uint32_t](&o.err, "max_seq_len", n, 1, math.MaxUint32)
	}
}

// WithMaxBatchSize sets the most sequences that run at the same time; more wait. 8.
func WithMaxBatchSize(n int) Option {
	return func(o *buildOptions) {
		o.c.max_batch_size = number[C.uint32_t](&o.err, "max_batch_size", n, 1, math.MaxUint32)
	}
}

// WithModelParallelSize says how many shards the checkpoint must have. 0: any number.
func WithModelParallelSize(n int) Option {
	return func(o *buildOptions) {
		o.c.model_parallel_size = number[C.int32_t](&o.err, "model_parallel_size", n, 0, math.MaxInt32)
	}
}

// WithDevice chooses the device, and which one of several. DeviceAuto, 0.
func WithDevice(d Device, index int) Option {
	return func(o *buildOptions) {
		o.c.device = C.int32_t(d)
		o.c.device_index = number[C.int32_t](&o.err, "device_index", index, 0, math.MaxInt32)
	}
}

// WithDevices puts a rank with its share of the model on each of these GPUs (on DeviceCUDA, by the
// numbers of WithDevice), otherwise on each of these NUMA nodes, whose numbers `lscpu` says; a node
// may be named more than once, a GPU may not. None: one rank.
func WithDevices(nodes ...int) Option {
	return func(o *buildOptions) {
		o.devices = nil
		for i, node := range nodes {
			name := fmt.Sprintf("devices[%d]", i)
			o.devices = append(o.devices, number[C.int32_t](&o.err, name, node, 0, math.MaxInt32))
		}
	}
}

// WithRankTimeout sets how long a rank may be silent while others wait for it; after that, calls
// fail with [ErrPeer]. 0: a minute.
func WithRankTimeout(d time.Duration) Option {
	return func(o *buildOptions) { o.c.rank_timeout_ms = milliseconds32(&o.err, "rank_timeout_ms", d) }
}

// WithThreads sets the threads of the CPU backend, of each rank. 0: as many as the process may use.
func WithThreads(n int) Option {
	return func(o *buildOptions) {
		o.c.n_threads = number[C.uint32_t](&o.err, "n_threads", n, 0, maxThreads)
	}
}

// maxThreads is as llamabi.h says of n_threads.
const maxThreads = 1024

// WithWeightsDtype converts the weights as they are read. DtypeAuto.
func WithWeightsDtype(d Dtype) Option {
	return func(o *buildOptions) { o.c.weights_dtype = C.int32_t(d) }
}

// WithKVDtype sets the dtype of the KV cache. DtypeAuto.
func WithKVDtype(d Dtype) Option { return func(o *buildOptions) { o.c.kv_dtype = C.int32_t(d) } }

// WithPrecision sets how exactly the CPU multiplies. PrecisionAuto.
func WithPrecision(p Precision) Option {
	return func(o *buildOptions) { o.c.precision = C.int32_t(p) }
}

// WithSeed seeds the generator that gives a seed to calls without one. 1.
func WithSeed(seed uint64) Option { return func(o *buildOptions) { o.c.seed = C.uint64_t(seed) } }

// WithGPUMemory sets the most bytes of GPU memory that the model allocates; what does not fit is
// [ErrDeviceMemory]. 0: as many as are free.
func WithGPUMemory(bytes uint64) Option {
	return func(o *buildOptions) { o.c.gpu_memory_bytes = C.uint64_t(bytes) }
}

// WithMaxWaiting sets the most calls that wait for slots; one more is [ErrBusy]. 0: 1024.
func WithMaxWaiting(n int) Option {
	return func(o *buildOptions) {
		o.c.max_waiting = number[C.uint32_t](&o.err, "max_waiting", n, 0, math.MaxUint32)
	}
}

// WithMaxStall sets how long a sequence whose reader is behind keeps its slot while others wait, to
// a millisecond. Then it is set aside, and goes on when the reader has caught up. 0: one second.
func WithMaxStall(d time.Duration) Option {
	return func(o *buildOptions) { o.c.max_stall_ms = milliseconds32(&o.err, "max_stall_ms", d) }
}

// WithMaxStep sets how long a step should take at most that computes a chunk of a prompt beside
// running streams: about the longest time between two of their tokens while prompts arrive. 0: 100
// ms.
func WithMaxStep(d time.Duration) Option {
	return func(o *buildOptions) { o.c.max_step_ms = milliseconds32(&o.err, "max_step_ms", d) }
}

// Never is for [WithMaxUnread].
const Never time.Duration = math.MaxInt64

// WithMaxUnread sets after how long a stream whose reader is behind and takes no event ends with
// [FinishUnread], to a millisecond. 0: one minute.
func WithMaxUnread(d time.Duration) Option {
	return func(o *buildOptions) {
		if d == Never {
			o.c.max_unread_ms = math.MaxUint32
			return
		}
		o.c.max_unread_ms = milliseconds32(&o.err, "max_unread_ms", d)
	}
}

// WithStallMemory sets the most bytes of host memory for sequences that [WithMaxStall] sets aside.
// Where it is not enough, the stream that has gone unread the longest ends with [FinishUnread]. 0:
// as many as the KV cache has.
func WithStallMemory(bytes uint64) Option {
	return func(o *buildOptions) { o.c.stall_memory_bytes = C.uint64_t(bytes) }
}

// WithChatTemplate sets the text of a Jinja template for chats, instead of the model's.
func WithChatTemplate(text string) Option {
	return func(o *buildOptions) { o.template = text }
}

// WithChatNow sets what strftime_now of a chat template sees, to a second; the zero time: the
// clock.
func WithChatNow(now time.Time) Option {
	return func(o *buildOptions) {
		switch seconds := now.Unix(); {
		case now.IsZero():
			o.c.chat_now = 0
		case seconds == 0: // C's word for the clock
			o.c.chat_now = 1
		default:
			o.c.chat_now = C.int64_t(seconds)
		}
	}
}

// WithAdapter merges the LoRA adapter in dir into the weights, weighted by scale; several are
// merged in their order.
func WithAdapter(dir string, scale float32) Option {
	return func(o *buildOptions) {
		o.adapters = append(o.adapters, dir)
		o.scales = append(o.scales, scale)
	}
}

// WithDraft loads a draft model beside the model: a smaller checkpoint with the same tokens, which
// guesses at tokens ([Speculate]), or which the model is contrasted with ([Contrast]).
func WithDraft(dir string) Option { return func(o *buildOptions) { o.draft = dir } }

// WithMedusa loads Medusa heads from a directory, which were trained for the model and guess at
// tokens ([Speculate]).
func WithMedusa(dir string) Option { return func(o *buildOptions) { o.medusa = dir } }

// WithDraftDtypes sets the dtypes of the draft model's weights and KV cache. DtypeAuto, DtypeAuto.
func WithDraftDtypes(weights, kv Dtype) Option {
	return func(o *buildOptions) {
		o.c.draft_weights_dtype, o.c.draft_kv_dtype = C.int32_t(weights), C.int32_t(kv)
	}
}

// WithProgress has report hear the fraction of the checkpoint that has been read, 0 to 1. It runs
// within [Open], on its thread; false stops the loading ([ErrCancelled]). So do a panic and
// [runtime.Goexit], which go on in [Open].
func WithProgress(report func(fraction float32) bool) Option {
	return func(o *buildOptions) { o.progress = report }
}

// WithLog has log hear the model's log lines down to level. It runs within calls on the model, of
// several at once, on their threads, and must not call the model's generating methods. If it panics
// or calls [runtime.Goexit], that goes on in the call that returns next, whichever it is.
func WithLog(level LogLevel, log func(level LogLevel, line string)) Option {
	return func(o *buildOptions) {
		o.c.log_level = C.int32_t(level)
		o.log = log
	}
}
