// Part of llamabi.hpp: what is thrown, and the check that the library is the one this was compiled
// for, without which none of its structs can be trusted.
#ifndef LLAMABI_ERROR_HPP
#define LLAMABI_ERROR_HPP

#include <llamabi.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace llamabi {

/// What every function throws where the library reports a failure.
class error : public std::runtime_error {
public:
  error(llama_status status, const std::string &message)
      : std::runtime_error(message), status_(status) {}
  /// `LLAMA_E_*`; `LLAMA_CANCELLED` where a call was stopped that has nothing to return.
  llama_status status() const noexcept { return status_; }

private:
  llama_status status_;
};

/// Version of the library that was loaded.
inline std::string version() { return llama_version(); }

namespace detail {

/// Throws unless the library that was loaded has the ABI this was compiled for.
inline void check_abi() {
  constexpr std::uint32_t ours = LLAMABI_ABI_VERSION;
  if (const std::uint32_t theirs = llama_abi_version(); theirs != ours)
    throw error(LLAMA_E_ABI, "libllamabi " + version() + " was loaded, of ABI version " +
                                 std::to_string(theirs) +
                                 "; this program was compiled for ABI version " +
                                 std::to_string(ours) + " (llamabi.h of " LLAMABI_VERSION ")");
}

} // namespace detail

} // namespace llamabi

#endif // LLAMABI_ERROR_HPP
