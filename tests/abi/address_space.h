#ifndef ADDRESS_SPACE_H
#define ADDRESS_SPACE_H

#include "abi.h"

#include <sys/resource.h>

static const size_t MIB = 1 << 20;

/* Bytes of address space that this process has. */
static size_t address_space(void) {
  FILE *f = fopen("/proc/self/statm", "r");
  size_t pages = 0;
  CHECK(f != NULL && fscanf(f, "%zu", &pages) == 1);
  if (f != NULL) fclose(f);
  return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* So much more than it has; 0: as much as there is. */
static void allow(size_t bytes) {
  struct rlimit limit;
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = bytes == 0 ? limit.rlim_max : address_space() + bytes;
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

#endif
