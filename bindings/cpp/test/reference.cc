// The recorded outputs of Meta's code, as tests/models/reference.rs checks them.
#include "test.hpp"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

using nlohmann::json;
using Batch = std::vector<std::vector<llamabi::Token>>;

static void check_logprobs(
    const std::vector<float> &got, const json &want, const std::string &what) {
  bool same = got.size() == want.size();
  for (std::size_t i = 0; same && i < got.size(); i++)
    same = std::abs(got[i] - want[i].get<float>()) <= 2e-3F;
  if (!same) std::fprintf(stderr, "%s: log probabilities differ\n", what.c_str());
  CHECK(same);
}

static void check_completion(const llamabi::Model &model, const llamabi::Completion &got,
    const json &want, const std::string &what) {
  const json &generation = want["generation"];
  const json &text = generation.is_string() ? generation : generation["content"];
  std::vector<std::string> pieces;
  for (llamabi::Token t : got.tokens) pieces.push_back(model.decode(Ids{t}));
  if (got.text != text) std::fprintf(stderr, "%s: text is %s\n", what.c_str(), got.text.c_str());
  CHECK(got.text == text);
  CHECK(pieces == want["tokens"].get<std::vector<std::string>>());
  check_logprobs(got.logprobs, want["logprobs"], what);
}

static llamabi::Dialog dialog(const json &messages) {
  llamabi::Dialog d;
  for (const json &m : messages) d.emplace_back(m["role"], m["content"]);
  return d;
}

BEHAVIOUR(reference) {
  int seen = 0;
  for (const char *name : {"mha-f32", "gqa-bf16", "gqa-f16-mp2"}) {
    std::ifstream file(test::reference(std::string(name) + "/cases.json"));
    const json cases = json::parse(file);
    for (const char *form : {"meta", "hf"}) {
      llamabi::Options build;
      build.weights_dtype = LLAMA_DTYPE_F32;
      build.kv_dtype = LLAMA_DTYPE_F32;
      build.max_seq_len = 64;
      build.max_batch_size = 4;
      const std::string dir = std::string(name) + "/" + form;
      const llamabi::Model model(test::reference(dir), build);
      for (const json &c : cases["cases"]) {
        const json &args = c["args"];
        const std::string kind = c["kind"], what = dir + " " + kind;
        if (kind != "generate" && kind != "text_completion" && kind != "chat_completion") continue;
        seen++;
        auto o = test::greedy(args["max_gen_len"]);
        o.logprobs = true;
        o.echo = args.value("echo", false);
        if (kind == "generate") {
          const auto prompts = args["prompt_tokens"].get<Batch>();
          const auto got = model.generate(prompts, o);
          CHECK(got.size() == prompts.size());
          for (std::size_t i = 0; i < got.size(); i++) {
            CHECK(got[i].tokens == c["tokens"][i].get<std::vector<llamabi::Token>>());
            CHECK(got[i].text == model.decode(got[i].tokens));
            check_logprobs(got[i].logprobs, c["logprobs"][i], what);
          }
          continue;
        }
        std::vector<llamabi::Completion> got;
        if (kind == "text_completion") {
          const auto prompts = args["prompts"].get<std::vector<std::string>>();
          for (std::size_t i = 0; i < prompts.size(); i++)
            CHECK(model.encode(prompts[i], true) ==
                  c["prompt_tokens"][i].get<std::vector<llamabi::Token>>());
          got = model.text_completion(prompts, o);
        } else {
          std::vector<llamabi::Dialog> dialogs;
          for (const json &d : args["dialogs"]) dialogs.push_back(dialog(d));
          got = model.chat_completion(dialogs, o);
        }
        CHECK(got.size() == c["result"].size());
        for (std::size_t i = 0; i < got.size(); i++)
          check_completion(model, got[i], c["result"][i], what);
      }
    }
  }
  CHECK(seen == 54);
}
