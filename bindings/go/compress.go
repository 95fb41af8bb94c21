package llamabi

// #include <llamabi.h>
import "C"

import (
	"context"
	"runtime"
	"unsafe"
)

// SegmentKind says what [Model.Compress] does with a segment.
type SegmentKind int32

// The kinds of segments. SegmentQuestion: it stays as it is, and the segments that are compressed
// are ranked by how much they help to expect it.
const (
	SegmentKeep     SegmentKind = C.LLAMA_SEGMENT_KEEP
	SegmentCompress SegmentKind = C.LLAMA_SEGMENT_COMPRESS
	SegmentQuestion SegmentKind = C.LLAMA_SEGMENT_QUESTION
)

// Segment is a part of a prompt.
type Segment struct {
	Text string
	Kind SegmentKind
}

// CompressOptions say how much [Model.Compress] leaves. A zero is the default.
type CompressOptions struct {
	// TargetTokens is the number of tokens that all segments have together afterwards. 0: Rate says
	// it.
	TargetTokens uint32
	// Rate is the share of all tokens that is left, above 0 and at most 1. 0: a half.
	Rate float32
	// Window is the number of tokens that are looked at together. 0: 100.
	Window uint32
	// Coarse times the tokens that may be left are chosen by the first pass, which leaves out whole
	// segments; at least 1. 0: 2.
	Coarse float32
	// KeepNewlines and KeepDigits let tokens with these stay before others.
	KeepNewlines, KeepDigits bool
}

// Compress shortens a prompt: of the segments of kind [SegmentCompress], the tokens go that the
// model expects most. The results are what is left of each segment. Cancelled by ctx or
// [Model.Close], it returns an error.
func (m *Model) Compress(ctx context.Context, segments []Segment, options CompressOptions) ([]Result, error) {
	end, err := m.call()
	if err != nil {
		return nil, err
	}
	defer end()
	flag, release, err := cancelFlag(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	var pin runtime.Pinner
	defer pin.Unpin()
	texts := make([]string, len(segments))
	for i, s := range segments {
		texts[i] = s.Text
	}
	pointers, lens := cStrings(texts, &pin)
	all := make([]C.llama_segment, len(segments), len(segments)+1)
	for i, s := range segments {
		all[i] = C.llama_segment{text: pointers[i], len: lens[i], kind: C.int32_t(s.Kind)}
	}
	var o C.llama_compress_options
	C.llama_compress_options_init(&o, C.sizeof_llama_compress_options)
	o.target_tokens = C.uint32_t(options.TargetTokens)
	o.cancel = flag
	if options.Rate != 0 {
		o.rate = C.float(options.Rate)
	}
	if options.Window != 0 {
		o.window = C.uint32_t(options.Window)
	}
	if options.Coarse != 0 {
		o.coarse = C.float(options.Coarse)
	}
	if options.KeepNewlines {
		o.flags |= C.LLAMA_COMPRESS_KEEP_NEWLINES
	}
	if options.KeepDigits {
		o.flags |= C.LLAMA_COMPRESS_KEEP_DIGITS
	}
	var result *C.llama_result_t
	var cerr cError
	status := C.llama_compress(m.c, unsafe.SliceData(all), C.size_t(len(all)), &o, &result, cerr.init())
	defer C.llama_result_free(result)
	if status != C.LLAMA_OK {
		return nil, cerr.toError(ctx, status, m.handle)
	}
	return resultsOf(result), nil
}
