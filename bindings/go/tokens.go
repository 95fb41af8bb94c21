package llamabi

// #include <llamabi.h>
import "C"

import (
	"context"
	"runtime"
	"unsafe"
)

// Encode makes tokens of a text, with the BOS token in front and the EOS token behind if asked for.
func (m *Model) Encode(text string, bos, eos bool) ([]int32, error) {
	return m.encode(context.Background(), text, encodeFlags(bos, eos), C.SIZE_MAX)
}

// EncodeSpecial is [Model.EncodeBounded] for a text that may spell special and added tokens
// ("<|eot_id|>"), which are words to Encode. It is not for texts that anybody may have sent.
func (m *Model) EncodeSpecial(ctx context.Context, text string, bos, eos bool, maxTokens int) ([]int32, error) {
	return m.encodeBounded(ctx, text, encodeFlags(bos, eos)|C.LLAMA_ENC_SPECIAL, maxTokens)
}

// EncodeBounded is [Model.Encode] for a text that anybody may have sent. It fails with [ErrTooLong]
// as soon as there are certain to be more than maxTokens tokens, and with [ErrCancelled] when ctx
// is done.
func (m *Model) EncodeBounded(ctx context.Context, text string, bos, eos bool, maxTokens int) ([]int32, error) {
	return m.encodeBounded(ctx, text, encodeFlags(bos, eos), maxTokens)
}

func (m *Model) encodeBounded(ctx context.Context, text string, flags C.uint32_t, maxTokens int) ([]int32, error) {
	if maxTokens < 0 {
		return nil, invalid("max_tokens is %d, must be at least 0", maxTokens)
	}
	return m.encode(ctx, text, flags, C.size_t(maxTokens))
}

func encodeFlags(bos, eos bool) C.uint32_t {
	var flags C.uint32_t
	if bos {
		flags |= C.LLAMA_ENC_BOS
	}
	if eos {
		flags |= C.LLAMA_ENC_EOS
	}
	return flags
}

func (m *Model) encode(ctx context.Context, text string, flags C.uint32_t, maxTokens C.size_t) ([]int32, error) {
	flag, release, err := cancelFlag(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	// A token is a byte or more, but for the two above and a space that the tokenizer may put in
	// front.
	size := int(min(C.size_t(len(text)+3), maxTokens))
	return fill[int32](ctx, m, size, func(buf *C.int32_t, cap C.size_t, n *C.size_t, err *C.llama_error) C.llama_status {
		s := (*C.char)(unsafe.Pointer(unsafe.StringData(text)))
		if text == "" {
			s = new(C.char) // not NULL
		}
		return C.llama_encode_text_bounded(m.c, s, C.size_t(len(text)), flags, maxTokens, flag, buf, cap, n, err)
	})
}

// EncodeDialog makes tokens of a dialog in Meta's Llama 2 chat format, as [Model.Chat] gives them
// to the model. A dialog with one of the format's own tags in a message is [ErrInvalidArgument].
func (m *Model) EncodeDialog(dialog []Message) ([]int32, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	msgs := cMessages(dialog, &pin)
	size := 16
	for _, msg := range dialog {
		size += len(msg.Content) + 32
	}
	return fill[int32](context.Background(), m, size, func(buf *C.int32_t, cap C.size_t, n *C.size_t, err *C.llama_error) C.llama_status {
		return C.llama_encode_dialog(m.c, unsafe.SliceData(msgs), C.size_t(len(msgs)), buf, cap, n, err)
	})
}

// Decode is the text of tokens, as the tokenizer decodes a whole sequence.
func (m *Model) Decode(tokens []int32) (string, error) {
	flat, lens := flatten([][]int32{tokens})
	text, err := fill[byte](context.Background(), m, 8*len(tokens)+1, func(buf *C.char, cap C.size_t, n *C.size_t, err *C.llama_error) C.llama_status {
		return C.llama_decode_tokens(m.c, unsafe.SliceData(flat), lens[0], buf, cap, n, err)
	})
	return string(text), err
}

// TokenBytes is what a token contributes in the middle of a text: its text, its one byte if it
// stands for a byte, nothing if it is a control token.
func (m *Model) TokenBytes(token int32) ([]byte, error) {
	end, err := m.call()
	if err != nil {
		return nil, err
	}
	defer end()
	if err := m.borrow(); err != nil {
		return nil, err
	}
	defer m.giveBack()
	var p *C.char
	var n C.size_t
	var cerr cError
	if status := C.llama_token_bytes(m.c, C.int32_t(token), &p, &n, cerr.init()); status != C.LLAMA_OK {
		return nil, cerr.toError(context.Background(), status, m.handle)
	}
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(p)), n)...), nil
}

// fill calls get with a buffer of size, and again with one of the size that C says is needed.
func fill[T int32 | byte | uint32, CT C.int32_t | C.char | C.uint32_t](ctx context.Context, m *Model, size int, get func(*CT, C.size_t, *C.size_t, *C.llama_error) C.llama_status) ([]T, error) {
	end, err := m.call()
	if err != nil {
		return nil, err
	}
	defer end()
	for {
		buf := make([]T, max(size, 1)) // not NULL, which would ask for the size only
		var n C.size_t
		var cerr cError
		status := get((*CT)(unsafe.Pointer(unsafe.SliceData(buf))), C.size_t(len(buf)), &n, cerr.init())
		if status == C.LLAMA_OK {
			return buf[:n], nil
		}
		// The same status says that an argument is wrong; the size tells the two apart.
		if status != C.LLAMA_E_INVALID_ARGUMENT || int(n) <= len(buf) {
			return nil, cerr.toError(ctx, status, m.handle)
		}
		size = int(n)
	}
}
