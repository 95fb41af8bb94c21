package llamabi

// #include <llamabi.h>
import "C"

import (
	"context"
	"iter"
	"runtime"
	"sync"
	"unsafe"
)

// EventKind says what happened.
type EventKind int32

// The kinds of events.
const (
	// EventToken: a token was generated or echoed.
	EventToken EventKind = C.LLAMA_EVENT_TOKEN
	// EventFinish: a sequence has ended; nothing with its index follows.
	EventFinish EventKind = C.LLAMA_EVENT_FINISH
	// EventBeam: a beam went on by a token, or has finished with it, if [BeamEvents] was given.
	EventBeam EventKind = C.LLAMA_EVENT_BEAM
)

// Draft is what became of the guess at a token that the step which made the token had; see
// [Speculate].
type Draft int32

const (
	// DraftNone: there was no guess.
	DraftNone Draft = C.LLAMA_DRAFT_NONE
	// DraftAccepted: it was right, so the token needed no step of its own.
	DraftAccepted Draft = C.LLAMA_DRAFT_ACCEPTED
	// DraftRejected: it was another token. Guesses behind it came to nothing.
	DraftRejected Draft = C.LLAMA_DRAFT_REJECTED
)

// Event is something that happened to one sequence of a call.
type Event struct {
	Kind EventKind
	// Index of the sequence in the call; of an EventBeam, of the first of the prompt.
	Index int
	// Token is -1 in an EventFinish.
	Token int32
	// Logprob of the token, if [Logprobs] was given.
	Logprob float32
	// FinishReason and Stats of an EventFinish, else zero; the former also of a beam that has
	// finished.
	FinishReason FinishReason
	Stats        RequestStats
	// Beam is the place of an EventBeam: from 0 those that run on, best first, from [NumBeams] on
	// those that have finished. Parent is the place of what it goes on from, in the step before.
	Beam, Parent int
	// Step of the search that an EventBeam is of, from 1: as many tokens has the beam.
	Step int
	// SumLogprob and Score of an EventFinish or an EventBeam, as of a [Result].
	SumLogprob, Score float32
	// Text that became certain: whole code points, often none. A sequence's texts put together are
	// the text of its [Result]; with [FinishUnsafe], the sentence that says why.
	Text string
	// Draft says of an EventToken what became of the guess at it, if it had one.
	Draft Draft
	// TopLogprobs has the most likely tokens at this position, best first, if [TopLogprobs] was given.
	TopLogprobs []Alternative
}

// Stream continues prompts of tokens, event by event. The call begins when the sequence is ranged
// over, and again each time it is; leaving the loop ends it and frees its slots. An error comes
// last, with a zero Event.
func (m *Model) Stream(ctx context.Context, prompts [][]int32, opts ...GenerateOption) iter.Seq2[Event, error] {
	return m.stream(ctx, opts, func(_ *runtime.Pinner, o *C.llama_generate_options, out **C.llama_stream_t, err *C.llama_error) C.llama_status {
		tokens, lens := flatten(prompts)
		return C.llama_stream_open(m.c, unsafe.SliceData(tokens), unsafe.SliceData(lens), C.size_t(len(lens)), o, out, err)
	})
}

// StreamText continues texts, as [Model.Stream] continues tokens.
func (m *Model) StreamText(ctx context.Context, prompts []string, opts ...GenerateOption) iter.Seq2[Event, error] {
	return m.stream(ctx, opts, func(pin *runtime.Pinner, o *C.llama_generate_options, out **C.llama_stream_t, err *C.llama_error) C.llama_status {
		texts, lens := cStrings(prompts, pin)
		return C.llama_stream_open_text(m.c, unsafe.SliceData(texts), unsafe.SliceData(lens), C.size_t(len(lens)), o, out, err)
	})
}

// StreamChat answers the dialogs of [Model.Chat], as [Model.Stream] continues tokens.
func (m *Model) StreamChat(ctx context.Context, dialogs [][]Message, opts ...GenerateOption) iter.Seq2[Event, error] {
	return m.stream(ctx, opts, func(pin *runtime.Pinner, o *C.llama_generate_options, out **C.llama_stream_t, err *C.llama_error) C.llama_status {
		msgs, lens := cDialogs(dialogs, pin)
		return C.llama_stream_open_chat(m.c, unsafe.SliceData(msgs), unsafe.SliceData(lens), C.size_t(len(lens)), o, out, err)
	})
}

// Stopper ends sequences of a stream, see [WithStopper]; from any goroutine. The zero value is one.
type Stopper struct {
	mu     sync.Mutex
	stream *C.llama_stream_t
}

// Stop ends sequence i of the stream behind the events that were received of it: its EventFinish
// follows, with [FinishCaller]. Others go on. Nothing happens before the stream is ranged over and
// after its loop.
func (s *Stopper) Stop(i int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream == nil {
		return nil
	}
	if i < 0 {
		return invalid("i is %d, must be at least 0", i)
	}
	switch status := C.llama_stream_stop(s.stream, C.size_t(i)); status {
	case C.LLAMA_OK:
		return nil
	case C.LLAMA_E_INVALID_ARGUMENT:
		return invalid("i is %d, the stream has no such sequence", i)
	default:
		return &Error{Status: Status(status)}
	}
}

func (s *Stopper) set(stream *C.llama_stream_t) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stream = stream
	}
}

// openStream is one of the three functions that open a stream, with its prompts.
type openStream func(*runtime.Pinner, *C.llama_generate_options, **C.llama_stream_t, *C.llama_error) C.llama_status

func (m *Model) stream(ctx context.Context, opts []GenerateOption, open openStream) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := m.pull(ctx, opts, open, func(ev Event) bool { return yield(ev, nil) }); err != nil {
			yield(Event{}, err)
		}
	}
}

// pull gives events to yield until it returns false, and returns nil then.
func (m *Model) pull(ctx context.Context, opts []GenerateOption, open openStream, yield func(Event) bool) error {
	end, err := m.call()
	if err != nil {
		return err
	}
	defer end()
	flag, release, err := cancelFlag(ctx)
	if err != nil {
		return err
	}
	defer release()

	var stream *C.llama_stream_t
	var cerr cError
	var own *generateOptions
	freed := func() {}
	defer func() { freed() }()
	if err := func() error {
		var pin runtime.Pinner
		defer pin.Unpin()
		var o *C.llama_generate_options
		var err error
		if o, own, err = cGenerateOptions(opts, flag, &pin); err != nil {
			return err
		}
		freed = own.deciders.put(o)
		status := open(&pin, o, &stream, cerr.init())
		runtime.KeepAlive(opts) // a grammar among them, to which the stream holds on
		if status != C.LLAMA_OK {
			return cerr.toError(ctx, status, m.handle)
		}
		return nil
	}(); err != nil {
		return err
	}
	defer C.llama_stream_free(stream)
	own.stopper.set(stream)
	defer own.stopper.set(nil)

	c := C.llama_event{struct_size: C.sizeof_llama_event}
	for {
		status := C.llama_stream_next(stream, &c, -1, cerr.init())
		own.deciders.goOn()
		switch status {
		case C.LLAMA_OK:
			ev := eventOf(&c)
			if ev.Kind == EventFinish {
				stats := C.llama_request_stats{struct_size: C.sizeof_llama_request_stats}
				if status := C.llama_stream_stats(stream, C.size_t(c.index), &stats); status != C.LLAMA_OK {
					return &Error{Status: Status(status)}
				}
				ev.Stats = requestStatsOf(&stats)
			}
			if !yield(ev) {
				return nil
			}
		case C.LLAMA_DONE:
			return nil
		default:
			return cerr.toError(ctx, status, m.handle)
		}
	}
}

func eventOf(ev *C.llama_event) Event {
	return Event{
		Kind:         EventKind(ev.kind),
		Index:        int(ev.index),
		Token:        int32(ev.token),
		Logprob:      float32(ev.logprob),
		FinishReason: FinishReason(ev.finish_reason),
		Text:         string(unsafe.Slice((*byte)(unsafe.Pointer(ev.text)), ev.text_len)),
		TopLogprobs:  copied[Alternative](unsafe.Pointer(ev.top), ev.n_top),
		Beam:         int(ev.beam),
		Parent:       int(ev.parent),
		SumLogprob:   float32(ev.sum_logprob),
		Score:        float32(ev.score),
		Draft:        Draft(ev.draft),
		Step:         int(ev.step),
	}
}
