// go-server answers the OpenAI completions and chat-completions protocol with one model.
//
//	go run . --ckpt_dir ../../demo/meta --port 8080
//
// Requests run together in the model's own batches: max_batch_size sequences at a time, as many as
// --queue more wait, and the next one is answered 429. A client that leaves frees its slot.
//
// main.go starts and stops; server.go has the routes, the queue and the errors; request.go reads
// requests; generate.go runs them; completions.go and chat.go know the two protocols' shapes;
// metrics.go counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
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
	ckptDir := flag.String("ckpt_dir", "", "directory of the checkpoint (required)")
	tokenizer := flag.String("tokenizer_path", "", "tokenizer.model, if it is not in ckpt_dir")
	name := flag.String("model_name", "", "what /v1/models calls the model (default: the directory's name)")
	maxSeqLen := flag.Int("max_seq_len", 512, "most tokens of a sequence, prompt included")
	maxBatchSize := flag.Int("max_batch_size", 8, "sequences that run at the same time")
	threads := flag.Int("threads", 0, "threads of the CPU backend (0: all)")
	var weightsDtype, kvDtype llamabi.Dtype
	flag.Func("weights_dtype", "convert the weights to `dtype`: auto, f32, f16, bf16, int8, int4, nf4, fp8 (default auto)", setDtype(&weightsDtype))
	flag.Func("kv_dtype", "`dtype` of the KV cache (default auto)", setDtype(&kvDtype))
	seed := flag.Uint64("seed", 0, "of requests without one, in turn (0: random)")
	queue := flag.Int("queue", 64, "sequences that may wait; more are answered 429")
	maxBody := flag.Int64("max_body", 1<<20, "most bytes of a request")
	host := flag.String("host", "127.0.0.1", "address to listen on; there is no authentication")
	port := flag.Int("port", 8080, "port to listen on (0: any)")
	grace := flag.Duration("grace", 30*time.Second, "time that running requests have after SIGTERM")
	flag.Parse()
	if *ckptDir == "" || flag.NArg() > 0 {
		flag.Usage()
		return errors.New("--ckpt_dir is missing, or there are arguments that are no flags")
	}
	if *name == "" {
		abs, err := filepath.Abs(*ckptDir)
		if err != nil {
			return err
		}
		*name = filepath.Base(abs)
	}

	stopping, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", net.JoinHostPort(*host, strconv.Itoa(*port)))
	if err != nil {
		return err
	}
	s := newServer(*name, *maxBatchSize, *queue, *maxBody)
	requests, abandon := context.WithCancel(context.Background())
	defer abandon()
	server := &http.Server{
		Handler:           s.routes(),
		BaseContext:       func(net.Listener) context.Context { return requests },
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()

	if *seed == 0 {
		*seed = rand.Uint64()
	}
	log.Printf("seed %d", *seed)
	s.model, err = llamabi.Open(stopping, *ckptDir,
		llamabi.WithTokenizer(*tokenizer), llamabi.WithMaxSeqLen(*maxSeqLen), llamabi.WithMaxBatchSize(*maxBatchSize),
		llamabi.WithThreads(*threads), llamabi.WithWeightsDtype(weightsDtype), llamabi.WithKVDtype(kvDtype), llamabi.WithSeed(*seed),
		llamabi.WithLog(llamabi.LogInfo, func(_ llamabi.LogLevel, line string) { log.Print(line) }))
	if err != nil {
		return err
	}
	defer s.model.Close()
	s.loaded.Store(true)
	fmt.Printf("listening on http://%s\n", listener.Addr())
	select {
	case err := <-failed:
		return err
	case <-stopping.Done():
	}
	stop() // a second signal kills

	s.draining.Store(true)
	patience, cancel := context.WithTimeout(context.Background(), *grace)
	defer cancel()
	if err := server.Shutdown(patience); err != nil {
		log.Printf("requests still run after %v, and are cancelled", *grace)
		s.abandoning.Store(true)
		abandon()
		last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return server.Shutdown(last)
	}
	return nil
}

// setDtype parses a flag that is the name of a dtype.
func setDtype(d *llamabi.Dtype) func(string) error {
	return func(name string) error {
		dtypes := map[string]llamabi.Dtype{"auto": llamabi.DtypeAuto, "f32": llamabi.DtypeF32, "f16": llamabi.DtypeF16,
			"bf16": llamabi.DtypeBF16, "int8": llamabi.DtypeInt8, "int4": llamabi.DtypeInt4, "nf4": llamabi.DtypeNF4,
			"fp8": llamabi.DtypeFP8}
		var known bool
		if *d, known = dtypes[name]; !known {
			return errors.New("must be auto, f32, f16, bf16, int8, int4, nf4 or fp8")
		}
		return nil
	}
}
