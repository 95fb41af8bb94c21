// jsonl < ANSWERS: of each line of the worker's JSON "LINE FINISH TOKENS" or "LINE STATUS", in the
// order of lines.
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

int main() {
  std::map<int, std::string> lines;
  for (std::string text; std::getline(std::cin, text);) {
    const auto answer = nlohmann::json::parse(text);
    const int line = answer["line"];
    if (lines.count(line) != 0) return 3;
    if (answer.contains("error"))
      lines[line] = std::to_string(answer["status"].get<int>());
    else if (answer["queue_ms"] < 0 || answer["first_token_ms"] > answer["total_ms"] ||
             answer["total_ms"] <= 0)
      return 4;
    else
      lines[line] =
          answer["finish"].get<std::string>() + " " + std::to_string(answer["tokens"].get<int>());
  }
  for (const auto &[line, said] : lines) std::cout << line << " " << said << "\n";
}
