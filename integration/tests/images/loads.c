/* Loads each argument as a program would, and says which file the loader took: `NAME PATH`, or `NAME - WHY`; then the
 * mappings of this process, which tell a file from another under the same path. For glibc and musl, without a header of
 * either. */
extern void *dlopen(const char *, int);
extern char *dlerror(void);
extern int dlinfo(void *, int, void *);
extern int open(const char *, int, ...);
extern long read(int, void *, unsigned long), write(int, const void *, unsigned long);

struct link_map { void *base; char *name; };

static void say(const char *text) {
    unsigned long length = 0;
    while (text[length]) length++;
    write(1, text, length);
}

int main(int count, char **names) {
    static char buffer[65536];
    for (int at = 1; at < count; at++) {
        struct link_map *map = 0;
        void *handle = dlopen(names[at], 2);
        say(names[at]);
        if (handle && !dlinfo(handle, 2, &map)) say(" "), say(map->name);
        else say(" - "), say(dlerror());
        say("\n");
    }
    int maps = open("/proc/self/maps", 0);
    for (long got; (got = read(maps, buffer, sizeof buffer)) > 0;) write(1, buffer, got);
    return 0;
}

#ifdef MUSL
extern int __libc_start_main(int (*)(int, char **), int, char **, void *, void *, void *);
__asm__(".globl _start\n_start: xor %rbp, %rbp\nmov %rsp, %rdi\nand $-16, %rsp\ncall begin\n");
void begin(long *stack) { __libc_start_main(main, stack[0], (char **)(stack + 1), 0, 0, 0); }
#endif
