/* Medusa heads for a model, with weights that are made up, as files. */
#include <llamabi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_HEADS 3

static char heads_dir[] = "/tmp/llamabi-heads-XXXXXX";

static const char *heads_file(void) {
  static char path[64];
  snprintf(path, sizeof path, "%s/medusa_lm_head.safetensors", heads_dir);
  return path;
}

static void remove_heads(void) {
  unlink(heads_file());
  rmdir(heads_dir);
}

/* One tensor's entry, which ends at the byte that is returned. */
static unsigned long heads_entry(
    char *header, int head, const char *name, unsigned rows, unsigned cols, unsigned long at) {
  unsigned long end = at + 4ul * rows * (cols ? cols : 1);
  char shape[32];
  snprintf(shape, sizeof shape, cols ? "%u,%u" : "%u", rows, cols);
  sprintf(header + strlen(header),
      "%s\"%d.%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%lu,%lu]}", at ? "," : "{",
      head, name, shape, at, end);
  return end;
}

/* The directory, to be removed at the end; NULL if it cannot be written. */
static const char *write_heads(const llama_info *info) {
  char header[2048] = "";
  unsigned long long len;
  unsigned long end = 0, i;
  unsigned seed = 1;
  FILE *file;
  int head;
  for (head = 0; head < N_HEADS; head++) {
    end = heads_entry(header, head, "0.linear.weight", info->dim, info->dim, end);
    end = heads_entry(header, head, "0.linear.bias", info->dim, 0, end);
    end = heads_entry(header, head, "1.weight", info->vocab_size, info->dim, end);
  }
  strcat(header, "}");
  if (mkdtemp(heads_dir) == NULL || (file = fopen(heads_file(), "wb")) == NULL) return NULL;
  len = strlen(header);
  for (i = 0; i < 8; i++) fputc((int)(len >> 8 * i & 255), file);
  fputs(header, file);
  for (i = 0; i < end / 4; i++) {
    float x = (float)((seed = seed * 1103515245 + 12345) >> 16 & 1023) / 2048 - 0.25f;
    fwrite(&x, sizeof x, 1, file);
  }
  return fclose(file) == 0 ? heads_dir : NULL;
}
