/*
 * Makes mappings of one object in one process share their addresses, for ThreadSanitizer: it knows
 * memory by address, so that two mappings of a stream would hide from it every race between writer
 * and reader. Linked with --wrap=mcpd_map_open and --wrap=mcpd_map_close.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stream.h"

int __real_mcpd_map_open(struct mcpd_map *map, int fd, size_t nbytes, int writable);
void __real_mcpd_map_close(struct mcpd_map *map);
int __wrap_mcpd_map_open(struct mcpd_map *map, int fd, size_t nbytes, int writable);
void __wrap_mcpd_map_close(struct mcpd_map *map);

static struct object {
    ino_t inode;
    struct mcpd_map map;
    int users;
} objects[256];
static pid_t owner;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int open_locked(struct mcpd_map *map, int fd, size_t nbytes)
{
    struct stat status;
    struct object *unused = NULL;
    if (owner != getpid()) /* a forked child has none of them */
        for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++)
            objects[i].users = 0;
    owner = getpid();
    if (fstat(fd, &status) != 0)
        return -errno;
    for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++) {
        struct object *object = &objects[i];
        if (object->users == 0) {
            unused = object;
        } else if (object->inode == status.st_ino && object->map.nbytes >= nbytes) {
            object->users++;
            *map = object->map;
            return 0;
        }
    }
    if (unused == NULL)
        return -ENOMEM;
    int result = __real_mcpd_map_open(&unused->map, fd, nbytes, 1);
    if (result != 0)
        return result;
    unused->inode = status.st_ino;
    unused->users = 1;
    *map = unused->map;
    return 0;
}

int __wrap_mcpd_map_open(struct mcpd_map *map, int fd, size_t nbytes, int writable)
{
    (void)writable;
    pthread_mutex_lock(&mutex);
    int result = open_locked(map, fd, nbytes);
    pthread_mutex_unlock(&mutex);
    return result;
}

void __wrap_mcpd_map_close(struct mcpd_map *map)
{
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; map->base != NULL && i < sizeof objects / sizeof objects[0]; i++) {
        if (objects[i].users > 0 && objects[i].map.base == map->base) {
            if (--objects[i].users == 0)
                __real_mcpd_map_close(&objects[i].map);
            map->base = NULL;
        }
    }
    pthread_mutex_unlock(&mutex);
}
