// go-server answers the OpenAI completions and chat-completions protocol with one model.
//
//	go run . --ckpt_dir ../../demo/meta --port 8080
//
// Requests run together in the model's own batches: max_batch_size sequences at a time, as many as
// --queue more wait, and further requests are answered 429. A client that leaves frees its slot.
//
// main.go starts and stops; flags.go is the command line; server.go has the routes, the queue and
// the errors; models.go the model's and its adapters' names; auth.go says who may ask; request.go
// reads requests, messages.go the messages of chats, constraint.go and forced.go the languages of
// answers; grammars.go keeps their grammars; generate.go runs requests; spelling.go makes texts and
// the tokens that spell them; completions.go and chat.go know the two protocols' shapes,
// tokenize.go /tokenize and /detokenize; writing.go writes answers as their clients take them;
// metrics.go and access.go count and write down.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"llamabi"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("go-server: ")
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	set, err := readFlags()
	if err != nil {
		return err
	}
	if set.name == "" {
		abs, err := filepath.Abs(set.ckptDir)
		if err != nil {
			return err
		}
		set.name = filepath.Base(abs)
	}
	if err := set.checkNames(); err != nil {
		return err
	}

	accessLog, err := openAccessLog(set.accessLog)
	if err != nil {
		return err
	}
	stopping, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", net.JoinHostPort(set.host, strconv.Itoa(set.port)))
	if err != nil {
		return err
	}
	set.access.listensOn(listener.Addr())
	s := newServer(set, accessLog)
	requests, abandon := context.WithCancel(context.Background())
	defer abandon()
	server := &http.Server{
		Handler:           s.routes(),
		BaseContext:       func(net.Listener) context.Context { return requests },
		ConnContext:       boundSendBuffer,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// OPTIONS * is answered as all that is unknown here.
		DisableGeneralOptionsHandler: true,
	}
	unasked := newConnections()
	server.ConnState = unasked.change
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()

	if set.seed == 0 {
		set.seed = rand.Uint64()
	}
	log.Printf("seed %d", set.seed)
	s.model, err = llamabi.Open(stopping, set.ckptDir,
		llamabi.WithTokenizer(set.tokenizer), llamabi.WithChatTemplate(set.chatTemplate), llamabi.WithMaxSeqLen(set.maxSeqLen), llamabi.WithMaxBatchSize(set.maxBatchSize),
		llamabi.WithDevice(set.device, set.deviceIndex), llamabi.WithGPUMemory(set.gpuMemory), llamabi.WithThreads(set.threads), llamabi.WithDevices(set.ranks...),
		llamabi.WithMaxWaiting(set.maxWaiting), llamabi.WithMaxStall(set.maxStall), llamabi.WithMaxUnread(set.maxUnread), llamabi.WithMaxStep(set.maxStep), llamabi.WithStallMemory(set.stallMemory),
		llamabi.WithWeightsDtype(set.weightsDtype), llamabi.WithKVDtype(set.kvDtype), llamabi.WithPrecision(set.precision),
		llamabi.WithDraft(set.draftDir), llamabi.WithDraftDtypes(set.draftDtype, llamabi.DtypeAuto), llamabi.WithMedusa(set.medusaDir),
		llamabi.WithSeed(set.seed),
		llamabi.WithLog(llamabi.LogInfo, func(_ llamabi.LogLevel, line string) { log.Print(line) }))
	if errors.Is(err, llamabi.ErrCancelled) {
		return nil // as it was told to
	} else if err != nil {
		return err
	}
	defer s.model.Close()
	if err := s.addAdapters(set.adapters); err != nil {
		return err
	}
	if err := s.measure(); err != nil {
		return err
	}
	s.loaded.Store(true)
	fmt.Printf("listening on http://%s\n", listener.Addr())
	select {
	case err := <-failed:
		return err
	case <-stopping.Done():
	}
	stop() // a second signal kills

	s.draining.Store(true)
	if set.drain > 0 {
		log.Printf("not ready any more; requests are taken for another %v s", set.drain.Seconds())
		select {
		case err := <-failed:
			return err
		case <-time.After(set.drain):
		}
	}
	unasked.close()
	patience, cancel := context.WithTimeout(context.Background(), set.grace)
	defer cancel()
	if err := server.Shutdown(patience); err != nil {
		log.Printf("%d requests still run after %v s, and are cancelled", s.metrics.running.Load(), set.grace.Seconds())
		s.abandoning.Store(true)
		abandon()
		last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := server.Shutdown(last); err != nil {
			log.Printf("%d answers have not been taken, and are cut", s.metrics.running.Load())
			return server.Close()
		}
	}
	return nil
}

// sendBuffer bounds what the system takes for a client that does not read. By itself it takes up to
// 4 MiB: 20,000 chunks of a stream, all of which are generated before the model hears that nobody
// reads.
const sendBuffer = 128 << 10

func boundSendBuffer(ctx context.Context, connection net.Conn) context.Context {
	if tcp, isTCP := connection.(*net.TCPConn); isTCP {
		tcp.SetWriteBuffer(sendBuffer) // where that fails the connection is as good as any
	}
	return ctx
}

// connections are those on which no request has come yet. Shutdown waits for them, if only for five
// seconds.
type connections struct {
	mu      sync.Mutex
	new     map[net.Conn]bool
	closing bool
}

func newConnections() *connections { return &connections{new: map[net.Conn]bool{}} }

// change is the server's ConnState.
func (c *connections) change(connection net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state != http.StateNew {
		delete(c.new, connection)
	} else if c.closing {
		connection.Close()
	} else {
		c.new[connection] = true
	}
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
	for connection := range c.new {
		connection.Close()
	}
}
