// The fibers, for a library that is loaded many times. The loader reserves little thread-local
// memory at fixed places; it would suffice for a few copies only.
#define EMU_LOADED_MANY_TIMES
#include "../fibers.cpp"
