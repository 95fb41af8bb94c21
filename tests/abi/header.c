/* The header alone, twice, in every C dialect; also compiled as C++ (header.cpp includes this). */
#include <llamabi.h>
#include <llamabi.h>

#include <stdio.h>
#include <string.h>

int main(void) {
  llama_t *llama = NULL; /* a name that hosts use */
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", LLAMABI_VERSION_MAJOR, LLAMABI_VERSION_MINOR,
      LLAMABI_VERSION_PATCH);
  if (strcmp(version, LLAMABI_VERSION) != 0 || strcmp(llama_version(), LLAMABI_VERSION) != 0 ||
      llama_abi_version() != LLAMABI_ABI_VERSION) {
    fprintf(stderr, "header %s (%s), ABI %u; library %s, ABI %u\n", LLAMABI_VERSION, version,
        (unsigned)LLAMABI_ABI_VERSION, llama_version(), (unsigned)llama_abi_version());
    return 1;
  }
  llama_free(llama);
  printf("header: version %s, ABI %u\n", version, (unsigned)LLAMABI_ABI_VERSION);
  return 0;
}
