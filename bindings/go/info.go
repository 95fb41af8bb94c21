package llamabi

// #include <llamabi.h>
import "C"

import (
	"context"
	"math"
	"time"
	"unsafe"
)

// Info is what was loaded.
type Info struct {
	VocabSize, Dim, NLayers, NHeads, NKVHeads, HeadDim, FFNDim int
	MaxSeqLen, MaxBatchSize                                    int
	// BosID is -1 where there is none, and EosID the first of EosIDs, -1 where there are none.
	BosID, EosID int32
	// PadID is -1 where there is none.
	PadID int32
	// Device, WeightsDtype and KVDtype are what was chosen, never Auto.
	Device                Device
	WeightsDtype, KVDtype Dtype
	// WeightBytes and KVBytes are what they take of the device's memory.
	WeightBytes, KVBytes uint64
	DeviceName           string
	// GPUKernels says whether the library was built with GPU kernels.
	GPUKernels bool
	// EosIDs end a sequence, any of them.
	EosIDs []int32
	// ChatFormat is what chat calls make of messages.
	ChatFormat ChatFormat
	// ModelType is the model's family ("llama", "qwen2"), and StoredFormat what most of its weights
	// are stored as ("bf16", "GGUF Q4_K", "gptq 4 bits").
	ModelType, StoredFormat string
	// ModelParallelSize is the number of ranks that compute the model. WeightBytes and KVBytes are
	// those of all.
	ModelParallelSize int
	// HasDraft says whether there is a draft model, whose bytes are in WeightBytes and KVBytes too.
	HasDraft bool
	// MedusaHeads is the number of Medusa heads, whose bytes are in WeightBytes too.
	MedusaHeads int
}

// ChatFormat is what chat calls make of messages.
type ChatFormat uint32

const (
	ChatNone     ChatFormat = C.LLAMA_CHAT_NONE
	ChatLlama2   ChatFormat = C.LLAMA_CHAT_LLAMA2
	ChatLlama3   ChatFormat = C.LLAMA_CHAT_LLAMA3
	ChatTemplate ChatFormat = C.LLAMA_CHAT_TEMPLATE
)

// Timings are totals of a model since it was opened, but for Running, Waiting, Parked and
// PagesUsed, which are of now.
type Timings struct {
	// Running and Waiting are sequences: in a slot, and waiting for one. Parked ones gave their
	// slot up.
	Running, Waiting, Parked int
	// Load is how long Open took; Prefill and Decode are in steps with and without prompt tokens.
	Load, Prefill, Decode time.Duration
	// CachedTokens are those of PromptTokens that were taken from the prefix cache.
	PromptTokens, CachedTokens, GeneratedTokens, Steps uint64
	// PagesUsed of PagesTotal pages of the KV cache are held by sequences.
	PagesUsed, PagesTotal uint64
	// Masks of grammars were computed in Mask, on a thread of their own; generation waited for them
	// for MaskWait of that.
	Masks          uint64
	Mask, MaskWait time.Duration
	// DraftedTokens were guessed at ([Speculate]); AcceptedTokens of them were right.
	DraftedTokens, AcceptedTokens uint64
}

// RequestStats are figures of one sequence.
type RequestStats struct {
	PromptTokens, CachedTokens, GeneratedTokens int
	// From the call to the first step, to the first generated token (0: there was none), to the end.
	Queue, FirstToken, Total time.Duration
	// DraftedTokens were guessed at ([Speculate]); AcceptedTokens of them were right.
	DraftedTokens, AcceptedTokens int
}

// Info says what was loaded.
func (m *Model) Info() (Info, error) {
	end, err := m.call()
	if err != nil {
		return Info{}, err
	}
	defer end()
	i := C.llama_info{struct_size: C.sizeof_llama_info}
	var cerr cError
	if status := C.llama_get_info(m.c, &i, cerr.init()); status != C.LLAMA_OK {
		return Info{}, cerr.toError(context.Background(), status, m.handle)
	}
	eosIDs := make([]int32, min(int(i.n_eos), len(i.eos_ids)))
	for n := range eosIDs {
		eosIDs[n] = int32(i.eos_ids[n])
	}
	return Info{
		VocabSize: int(i.vocab_size), Dim: int(i.dim), NLayers: int(i.n_layers), NHeads: int(i.n_heads),
		NKVHeads: int(i.n_kv_heads), HeadDim: int(i.head_dim), FFNDim: int(i.ffn_dim),
		MaxSeqLen: int(i.max_seq_len), MaxBatchSize: int(i.max_batch_size),
		BosID: int32(i.bos_id), EosID: int32(i.eos_id), PadID: int32(i.pad_id),
		Device: Device(i.device), WeightsDtype: Dtype(i.weights_dtype), KVDtype: Dtype(i.kv_dtype),
		WeightBytes: uint64(i.weight_bytes), KVBytes: uint64(i.kv_bytes),
		DeviceName:   C.GoString((*C.char)(unsafe.Pointer(&i.device_name))),
		GPUKernels:   i.gpu_kernels != 0,
		EosIDs:       eosIDs,
		ChatFormat:   ChatFormat(i.chat_format),
		ModelType:    C.GoString((*C.char)(unsafe.Pointer(&i.model_type))),
		StoredFormat: C.GoString((*C.char)(unsafe.Pointer(&i.stored_format))),

		ModelParallelSize: int(i.model_parallel_size),
		HasDraft:          i.has_draft != 0,
		MedusaHeads:       int(i.medusa_heads),
	}, nil
}

// Timings says what the model has done and is doing.
func (m *Model) Timings() (Timings, error) {
	end, err := m.call()
	if err != nil {
		return Timings{}, err
	}
	defer end()
	t := C.llama_timings{struct_size: C.sizeof_llama_timings}
	var cerr cError
	if status := C.llama_get_timings(m.c, &t, cerr.init()); status != C.LLAMA_OK {
		return Timings{}, cerr.toError(context.Background(), status, m.handle)
	}
	return Timings{
		Running: int(t.running), Waiting: int(t.waiting), Parked: int(t.parked),
		Load: milliseconds(t.load_ms), Prefill: milliseconds(t.prefill_ms), Decode: milliseconds(t.decode_ms),
		PromptTokens: uint64(t.prompt_tokens), CachedTokens: uint64(t.cached_tokens),
		GeneratedTokens: uint64(t.generated_tokens), Steps: uint64(t.steps),
		PagesUsed: uint64(t.pages_used), PagesTotal: uint64(t.pages_total),
		Masks: uint64(t.masks), Mask: milliseconds(t.mask_ms), MaskWait: milliseconds(t.mask_wait_ms),
		DraftedTokens: uint64(t.drafted_tokens), AcceptedTokens: uint64(t.accepted_tokens),
	}, nil
}

// Rank is what is known of a rank of a model.
type Rank struct {
	Rank   int
	Device Device
	// PID is its process, on Host.
	PID                  int
	WeightBytes, KVBytes uint64
	// Exchange is how long it has waited for and exchanged numbers with other ranks, and Silent how
	// long a rank in another process has given no sign of life.
	Exchange, Silent time.Duration
	Host, DeviceName string
}

// Rank says what is known of a rank. A model without several has one, number 0.
func (m *Model) Rank(rank int) (Rank, error) {
	end, err := m.call()
	if err != nil {
		return Rank{}, err
	}
	defer end()
	n := number[C.uint32_t](&err, "rank", rank, 0, math.MaxUint32)
	if err != nil {
		return Rank{}, err
	}
	r := C.llama_rank{struct_size: C.sizeof_llama_rank}
	var cerr cError
	if status := C.llama_get_rank(m.c, n, &r, cerr.init()); status != C.LLAMA_OK {
		return Rank{}, cerr.toError(context.Background(), status, m.handle)
	}
	return Rank{
		Rank: int(r.rank), Device: Device(r.device), PID: int(r.pid),
		WeightBytes: uint64(r.weight_bytes), KVBytes: uint64(r.kv_bytes),
		Exchange: milliseconds(r.exchange_ms), Silent: milliseconds(r.silent_ms),
		Host:       C.GoString((*C.char)(unsafe.Pointer(&r.host))),
		DeviceName: C.GoString((*C.char)(unsafe.Pointer(&r.device_name))),
	}, nil
}

// Health is what has made the model unusable, or nil: a rank that is gone, for example. No call has
// to fail first.
func (m *Model) Health() error {
	end, err := m.call()
	if err != nil {
		return err
	}
	defer end()
	var cerr cError
	if status := C.llama_health(m.c, cerr.init()); status != C.LLAMA_OK {
		return cerr.toError(context.Background(), status, m.handle)
	}
	return nil
}

func requestStatsOf(s *C.llama_request_stats) RequestStats {
	return RequestStats{
		PromptTokens: int(s.prompt_tokens), CachedTokens: int(s.cached_tokens), GeneratedTokens: int(s.generated_tokens),
		Queue: milliseconds(s.queue_ms), FirstToken: milliseconds(s.first_token_ms), Total: milliseconds(s.total_ms),
		DraftedTokens: int(s.drafted_tokens), AcceptedTokens: int(s.accepted_tokens),
	}
}

func milliseconds(ms C.double) time.Duration { return time.Duration(float64(ms) * 1e6) }
