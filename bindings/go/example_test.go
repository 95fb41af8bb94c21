package llamabi_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"llamabi"
)

func Example() {
	ctx := context.Background()
	model, err := llamabi.Open(ctx, "../../demo/meta")
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	results, err := model.TextCompletion(ctx, []string{"Once upon a time"},
		llamabi.Temperature(0), llamabi.Stop("."))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(results[0].Text)
	fmt.Println(results[0].FinishReason)
	// Output:
	// there was a kind boy named Felix
	// stop_string
}

func ExampleModel_StreamChat() {
	ctx := context.Background()
	model, err := llamabi.Open(ctx, "../../demo/meta")
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	dialog := []llamabi.Message{{Role: "user", Content: "What color is the sky?"}}
	for ev, err := range model.StreamChat(ctx, [][]llamabi.Message{dialog}, llamabi.Temperature(0)) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(ev.Text)
	}
	fmt.Println()
	// Output:
	// The sky is blue.
}

func ExampleModel_Generate_cancelled() {
	model, err := llamabi.Open(context.Background(), "../../demo/meta", llamabi.WithMaxSeqLen(100_000))
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	results, err := model.Generate(ctx, [][]int32{{1}}, llamabi.IgnoreEOS())
	fmt.Println(errors.Is(err, llamabi.ErrCancelled), errors.Is(err, context.DeadlineExceeded))
	fmt.Println(results[0].FinishReason) // Tokens and Text are as far as it came
	// Output:
	// true true
	// cancelled
}

func ExampleError() {
	_, err := llamabi.Open(context.Background(), "no/such/model")
	fmt.Println(errors.Is(err, llamabi.ErrIO))
	var e *llamabi.Error
	if errors.As(err, &e) {
		fmt.Println(e.Message)
	}
	// Output:
	// true
	// no/such/model: No such file or directory (os error 2)
}
