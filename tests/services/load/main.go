// load is many streaming clients of a service that speaks the OpenAI protocol, of which some hang
// up.
//
// It first asks alone, and keeps the answers: under load every answer that is read to its end must
// be the same. At the end nothing may run, wait or hold pages in the service, and its memory must
// be what it was after warming up. A garbage collector may still have had room to take, and on a
// slow machine for a while: then the same again, until it does not grow; four times more is a leak.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var (
	url     = flag.String("url", "", "where the service listens")
	pid     = flag.Int("pid", 0, "its process")
	clients = flag.Int("clients", 64, "streaming at the same time")
	seconds = flag.Float64("seconds", 10, "how long all of them do")
	hangUp  = flag.Float64("hang_up", 0.1, "share of the requests that are left mid-stream")
	warmUp  = flag.Float64("warm_up", 4, "seconds with all clients before memory is measured")
	maxGrow = flag.Float64("max_grow", 12, "MiB that the service may grow after warming up")
)

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run() error {
	model, err := modelName()
	if err != nil {
		return err
	}
	questions := makeQuestions(model)
	for i := range questions { // the answers that all have to be
		if questions[i].answer, err = questions[i].ask(context.Background(), 0); err != nil {
			return fmt.Errorf("alone: %w", err)
		}
	}
	alone, err := phase(questions, 1, min(3, *seconds/3), 0)
	if err != nil {
		return fmt.Errorf("alone: %w", err)
	}
	if _, err := phase(questions, *clients, *warmUp, *hangUp); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	if err := idle(); err != nil {
		return err
	}
	before, err := residentMiB()
	if err != nil {
		return err
	}
	together, after, err := loaded(questions)
	if err != nil {
		return err
	}
	for again := 0; after > before+*maxGrow && again < 4; again++ {
		fmt.Printf("load: memory %.1f MiB after warming up, %.1f MiB then; once more\n", before, after)
		before = after
		if together, after, err = loaded(questions); err != nil {
			return err
		}
	}
	fmt.Printf("load: one client %.0f tokens/s; %d clients %.0f tokens/s (%.1f times); %d answers, %d hung up, no error\n",
		alone.rate(), *clients, together.rate(), together.rate()/alone.rate(), together.answers.Load(), together.left.Load())
	fmt.Printf("load: nothing runs, waits or holds pages; memory %.1f MiB after warming up, %.1f MiB at the end\n", before, after)
	if together.left.Load() == 0 && *hangUp > 0 {
		return fmt.Errorf("nobody hung up")
	}
	if after > before+*maxGrow {
		return fmt.Errorf("the service grew by %.1f MiB, more than %.1f", after-before, *maxGrow)
	}
	return nil
}

// loaded is the load, and how much memory the service has after it.
func loaded(questions []question) (*outcome, float64, error) {
	together, err := phase(questions, *clients, *seconds, *hangUp)
	if err != nil {
		return nil, 0, err
	}
	if err := idle(); err != nil {
		return nil, 0, err
	}
	after, err := residentMiB()
	return together, after, err
}

// question is a request, and the answer that it always has to get.
type question struct {
	body   []byte
	answer answer
}

type answer struct {
	text, finish string
	tokens       int // as the service counts them
	events       int // that had text
}

func makeQuestions(model string) []question {
	var questions []question
	for i, user := range []string{"Tell me a story.", "What color is the sky?", "Hi!", "What does a cow say?",
		"Tell me a story about a fox.", "What is 2 plus 3?", "Tell me a fact.", "What is the capital of France?"} {
		for seed := range 3 {
			body, _ := json.Marshal(map[string]any{
				"model": model, "messages": []any{map[string]string{"role": "user", "content": user}},
				"stream": true, "stream_options": map[string]bool{"include_usage": true},
				"seed": 10*i + seed, "temperature": 0.9, "max_tokens": 150,
			})
			questions = append(questions, question{body: body})
		}
	}
	return questions
}

// ask reads the whole answer, or leaves after so many events with text.
func (q *question) ask(ctx context.Context, leaveAfter int) (answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // closes the connection, if the answer was not read to its end
	request, err := http.NewRequestWithContext(ctx, "POST", *url+"/v1/chat/completions", bytes.NewReader(q.body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return answer{}, fmt.Errorf("%s: %s", response.Status, text)
	}
	var a answer
	var text strings.Builder
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		if data == "[DONE]" {
			a.text = text.String()
			if a.finish == "" || a.tokens == 0 {
				return a, fmt.Errorf("an answer without an end: %+v", a)
			}
			_, err := io.Copy(io.Discard, response.Body) // so that the connection is used again
			return a, err
		}
		var chunk struct {
			Choices []struct {
				Delta        struct{ Content string }
				FinishReason string `json:"finish_reason"`
			}
			Usage *struct {
				CompletionTokens int `json:"completion_tokens"`
			}
			Error json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil || chunk.Error != nil {
			return a, fmt.Errorf("in the stream: %s %w", data, err)
		}
		for _, choice := range chunk.Choices {
			text.WriteString(choice.Delta.Content)
			if choice.FinishReason != "" {
				a.finish = choice.FinishReason
			}
			if choice.Delta.Content != "" {
				if a.events++; a.events == leaveAfter {
					return a, nil
				}
			}
		}
		if chunk.Usage != nil {
			a.tokens = chunk.Usage.CompletionTokens
		}
	}
	return a, fmt.Errorf("the stream broke off: %w", lines.Err())
}

type outcome struct {
	answers, left, tokens atomic.Int64
	took                  time.Duration
}

func (o *outcome) rate() float64 { return float64(o.tokens.Load()) / o.took.Seconds() }

// phase has n clients ask for a time; the first error ends it.
func phase(questions []question, n int, seconds, hangUp float64) (*outcome, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var o outcome
	var all sync.WaitGroup
	begin := time.Now()
	end := begin.Add(time.Duration(seconds * float64(time.Second)))
	for i := range n {
		all.Add(1)
		go func() {
			defer all.Done()
			dice := rand.New(rand.NewPCG(1, uint64(i)))
			for ctx.Err() == nil && time.Now().Before(end) {
				q, leaveAfter := &questions[dice.IntN(len(questions))], 0
				if dice.Float64() < hangUp && q.answer.events > 1 {
					leaveAfter = 1 + dice.IntN(q.answer.events-1)
				}
				a, err := q.ask(ctx, leaveAfter)
				switch {
				case err != nil:
					cancel(fmt.Errorf("client %d: %w", i, err))
				case leaveAfter > 0:
					o.left.Add(1)
					o.tokens.Add(int64(a.events))
				case a != q.answer:
					cancel(fmt.Errorf("client %d got %+v, alone it was %+v", i, a, q.answer))
				default:
					o.answers.Add(1)
					o.tokens.Add(int64(a.tokens))
				}
			}
		}()
	}
	all.Wait()
	o.took = time.Since(begin)
	return &o, context.Cause(ctx)
}

func get(path string) (string, error) {
	response, err := client.Get(*url + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

func modelName() (string, error) {
	text, err := get("/v1/models")
	if err != nil {
		return "", err
	}
	var list struct{ Data []struct{ ID string } }
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list.Data) == 0 {
		return "", fmt.Errorf("/v1/models says %s", text)
	}
	return list.Data[0].ID, nil
}

// patience is for what hangs, and more than a busy machine needs for anything else.
const patience = 5 * time.Minute

// idle waits until the service says that no sequence runs, waits or holds pages.
func idle() error {
	gauges := []string{"llamabi_sequences_running", "llamabi_sequences_waiting", "llamabi_kv_pages_used"}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		text, err := get("/metrics")
		if err != nil {
			return err
		}
		zeros := 0
		for _, gauge := range gauges {
			for line := range strings.Lines(text) {
				if value, found := strings.CutPrefix(line, gauge+" "); found && strings.TrimSpace(value) == "0" {
					zeros++
				}
			}
		}
		if zeros == len(gauges) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%v after the last client %v are not all 0:\n%s", patience, gauges, text)
		}
	}
}

func residentMiB() (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", *pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kib, err := strconv.ParseFloat(number, 64)
	return kib / 1024, err
}
