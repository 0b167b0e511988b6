/* The programs in the test's pods, without a library beside them:
 *   pause            nothing
 *   hold MIB         memory that is written once
 *   busy MIB         memory of which each page is written five times a second
 *   web MIB PORT     a server on 127.0.0.1 that writes to a quarter of its memory for each request
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static void end(int signal) {
    (void)signal;
    _exit(0);
}

/* The first process of a container is not ended by a signal that it does not handle, and is the parent of orphans. */
static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

static void touch(char *memory, size_t bytes) {
    static unsigned number = 1;
    for (size_t at = 0; at < bytes; at += PAGE) {
        number = number * 1664525u + 1013904223u;
        memory[at] = (char)number;
    }
}

static char *filled(size_t bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    touch(memory, bytes);
    return memory;
}

static void serve(char *memory, size_t bytes, int port) {
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int server = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 64)) {
        perror("listen");
        exit(1);
    }
    for (;;) {
        char request[4096];
        int client = accept(server, NULL, NULL);
        if (client < 0)
            continue;
        if (read(client, request, sizeof request) > 0) {
            touch(memory, bytes / 4);
            if (write(client, answer, sizeof answer - 1) < 0)
                perror("write");
        }
        close(client);
    }
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "pause";
    size_t bytes = count > 2 ? strtoul(words[2], NULL, 10) << 20 : 0;
    signal(SIGTERM, end);
    signal(SIGINT, end);
    signal(SIGCHLD, reap);
    signal(SIGPIPE, SIG_IGN);
    char *memory = bytes ? filled(bytes) : NULL;
    if (!strcmp(mode, "web") && count > 3)
        serve(memory, bytes, atoi(words[3]));
    while (!strcmp(mode, "busy")) {
        struct timespec rest = {.tv_nsec = 200000000};
        touch(memory, bytes);
        nanosleep(&rest, NULL);
    }
    for (;;)
        pause();
}
