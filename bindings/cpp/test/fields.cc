// Sets every option to what tests/bindings/fields.txt has, with the library of
// tests/bindings/fields.sh, and prints what it says.
#include <llamabi.hpp>

#include <cstdio>

// Figures are the C structs themselves, finish reasons their numbers.
static_assert(std::is_same_v<llamabi::Info, llama_info> &&
              std::is_same_v<llamabi::Timings, llama_timings> &&
              std::is_same_v<llamabi::Stats, llama_request_stats>);

template <class F> static void print(const char *name, F &&call) {
  try {
    call();
    std::printf("%s was not refused\n", name);
  } catch (const llamabi::error &e) {
    std::printf("%s %s\n", name, e.what());
  }
}

int main() {
  llamabi::Options o;
  o.max_seq_len = 101;
  o.max_batch_size = 102;
  o.model_parallel_size = 103;
  o.device = LLAMA_DEVICE_CUDA;
  o.device_index = 104;
  o.n_threads = 105;
  o.weights_dtype = LLAMA_DTYPE_NF4;
  o.kv_dtype = LLAMA_DTYPE_INT8;
  o.seed = 5000000106;
  o.cancel.emplace();
  o.progress = [](float) { return true; };
  o.log = [](std::int32_t, std::string_view) {};
  o.log_level = LLAMA_LOG_DEBUG;
  o.gpu_memory_bytes = 5000000107;
  o.max_waiting = 108;
  o.max_stall_ms = 109;
  o.max_unread_ms = 110;
  o.precision = LLAMA_PRECISION_FAST;
  o.stall_memory_bytes = 5000000111;
  o.chat_template = "a";
  o.chat_now = 5000000112;
  o.adapters = {{"a", 1.0F}, {"b", 0.5F}};
  o.devices = {0, 1, 2};
  o.rank_timeout_ms = 113;
  o.draft_dir = "a";
  o.draft_weights_dtype = LLAMA_DTYPE_INT4;
  o.draft_kv_dtype = LLAMA_DTYPE_BF16;
  o.medusa_dir = "b";
  o.max_step_ms = 114;
  print("llama_build_options", [&] { llamabi::Model("say", o); });

  llamabi::GenerateOptions g;
  // Numbers of llamabi.h.
  g.max_gen_len = 201;
  g.temperature = 0.5F;
  g.top_p = 0.25F;
  g.top_k = 202;
  g.min_p = 0.125F;
  g.repetition_penalty = 1.5F;
  g.seed = 5000000203;
  g.top_logprobs = 204;
  g.cache_salt = 5000000205;
  g.num_return_sequences = 206;
  g.num_beams = 211;
  g.min_gen_len = 207;
  g.no_repeat_ngram_size = 208;
  g.presence_penalty = 0.75F;
  g.frequency_penalty = -0.75F;
  g.typical_p = 0.625F;
  g.epsilon_cutoff = 0.375F;
  g.eta_cutoff = 0.875F;
  g.max_time_ms = 209;
  g.adapter = 210;
  g.length_penalty = 1.75F;
  g.draft_len = 212;
  g.contrast_beta = 0.15625F;
  g.contrast_alpha = 0.1875F;
  // End of numbers.
  g.stop = {"a", "b"};
  g.logit_bias = {{1, 0.5F}};
  g.stop_tokens = {1, 2, 3};
  g.bad_words = {{1}, {2, 3}, {4}, {5}};
  g.early_stopping = LLAMA_EARLY_NEVER;
  g.on_stop = [](std::uint32_t, const llamabi::Tokens &, std::size_t) { return false; };
  g.speculation = LLAMA_SPEC_NGRAM;
  g.predicted = {1, 2, 3, 4, 5};
  g.force_words = {{{1}, {2, 3}}, {{4}}};
  g.echo = g.logprobs = g.no_wait = g.ignore_eos = g.special = g.beam_events = true;
  g.cancel.emplace();
  const llamabi::Model model("a model");
  g.grammar = llamabi::Grammar::json(model);
  print("llama_generate_options", [&] { model.text_completion({"a"}, g); });
  for (const char *name : {"llama_info", "llama_timings", "llama_request_stats", "llama_finish"})
    std::printf("%s same\n", name);
}
