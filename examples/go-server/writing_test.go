package main

import (
	"net/http"
	"os"
	"slices"
	"testing"
	"time"
)

// client takes of an answer what it is told to.
type client struct {
	http.ResponseWriter
	pieces chan int // the length of each; unbuffered: the client takes it
	cut    chan bool
	ends   []time.Time // of the time that it has
}

func newClient() *client { return &client{pieces: make(chan int), cut: make(chan bool, 1)} }

func (c *client) Write(b []byte) (int, error) {
	select {
	case c.pieces <- len(b):
		return len(b), nil
	case <-c.cut:
		return 0, os.ErrDeadlineExceeded
	}
}

func (c *client) SetWriteDeadline(t time.Time) error {
	if c.ends = append(c.ends, t); t.Before(time.Now()) {
		c.cut <- true
	}
	return nil
}

// sends writes so many bytes, and gives the error of that.
func (c *client) sends(u *unsent, rec *record, size int) chan error {
	done := make(chan error, 1)
	go func() {
		_, err := newRecorder(c, rec, u).Write(make([]byte, size))
		done <- err
	}()
	return done
}

func waitFor(t *testing.T, u *unsent, sizes ...int) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Millisecond) {
		u.mu.Lock()
		var now []int
		for _, one := range u.waiting {
			now = append(now, one.size)
		}
		u.mu.Unlock()
		if slices.Equal(now, sizes) {
			return
		} else if time.Now().After(end) {
			t.Fatalf("%v wait, expected %v", now, sizes)
		}
	}
}

func TestAClientHasItsTimeForEachPieceOfAnAnswer(t *testing.T) {
	u := &unsent{most: 1 << 20}
	begin := time.Now()
	c, rec := newClient(), &record{}
	done := c.sends(u, rec, 2*pieceBytes+5)
	for _, size := range []int{pieceBytes, pieceBytes, 5} {
		if got := <-c.pieces; got != size {
			t.Errorf("a piece of %d bytes, expected %d", got, size)
		}
	}
	if err := <-done; err != nil || len(c.ends) != 3 || c.ends[0].Before(begin.Add(writePatience)) {
		t.Errorf("%v, with time until %v", err, c.ends)
	}
	waitFor(t, u)
	// A request's own end comes first.
	rec.deadline = time.Now().Add(writePatience / 2)
	done = c.sends(u, rec, 5)
	<-c.pieces
	if err := <-done; err != nil || c.ends[3] != rec.deadline {
		t.Errorf("%v, with time until %v, expected %v", err, c.ends, rec.deadline)
	}
}

func TestAnswersThatNobodyTakesHaveBoundedMemory(t *testing.T) {
	u := &unsent{most: 8 * pieceBytes}
	size := 3 * pieceBytes
	first, second := newClient(), newClient()
	firstDone := first.sends(u, &record{}, size)
	waitFor(t, u, size)
	secondDone := second.sends(u, &record{}, size+1)
	waitFor(t, u, size, size+1)
	<-first.pieces // so that nothing has been taken of the second for longest
	waitFor(t, u, size+1, size)
	third := newClient()
	thirdDone := third.sends(u, &record{}, size+2)
	if err := <-secondDone; err == nil {
		t.Error("the one of which nothing has been taken for longest is not cut")
	}
	waitFor(t, u, size, size+2)
	large := newClient()
	largeDone := large.sends(u, &record{}, 20*pieceBytes) // alone it may be larger
	for _, done := range []chan error{firstDone, thirdDone} {
		if err := <-done; err == nil {
			t.Error("there is more than there is room for")
		}
	}
	for range 20 {
		<-large.pieces
	}
	if err := <-largeDone; err != nil {
		t.Errorf("the last one is cut: %v", err)
	}
	if waitFor(t, u); u.bytes != 0 {
		t.Errorf("%d bytes are counted of answers that are gone", u.bytes)
	}
}
