/*
 * Tensors in slots, described by a writer and checked for a reader (frames.c does images).
 */
#include <errno.h>
#include <float.h>
#include <string.h>

#include "client.h"
#include "describe.h"
#include "layout.h"

static const uint8_t element_nbytes[] = {
    [MCPD_BOOL] = 1,    [MCPD_UINT8] = 1,    [MCPD_INT8] = 1,       [MCPD_UINT16] = 2,
    [MCPD_INT16] = 2,   [MCPD_UINT32] = 4,   [MCPD_INT32] = 4,      [MCPD_UINT64] = 8,
    [MCPD_INT64] = 8,   [MCPD_FLOAT16] = 2,  [MCPD_FLOAT32] = 4,    [MCPD_FLOAT64] = 8,
    [MCPD_COMPLEX64] = 8,      [MCPD_COMPLEX128] = 16,     [MCPD_BFLOAT16] = 2,
    [MCPD_FLOAT8_E4M3FN] = 1,  [MCPD_FLOAT8_E5M2] = 1,     [MCPD_FLOAT8_E4M3FNUZ] = 1,
    [MCPD_FLOAT8_E5M2FNUZ] = 1, [MCPD_FLOAT8_E8M0FNU] = 1, [MCPD_DATETIME64_S] = 8,
    [MCPD_DATETIME64_MS] = 8,  [MCPD_DATETIME64_US] = 8,   [MCPD_DATETIME64_NS] = 8,
    [MCPD_TIMEDELTA64_S] = 8,  [MCPD_TIMEDELTA64_MS] = 8,  [MCPD_TIMEDELTA64_US] = 8,
    [MCPD_TIMEDELTA64_NS] = 8,
};

static size_t element_of(uint32_t dtype)
{
    return dtype < sizeof element_nbytes ? element_nbytes[dtype] : 0;
}

/* Bytes of a tensor's elements; 0 if it has none, and MCPD_MAX_SLOT_NBYTES + 1 for all that is more. */
static uint64_t elements_nbytes(const struct mcpd_tensor_view *tensor)
{
    uint64_t nbytes = element_of(tensor->dtype);
    for (uint32_t i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] == 0)
            return 0;
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] > MCPD_MAX_SLOT_NBYTES / nbytes)
            return MCPD_MAX_SLOT_NBYTES + 1;
        nbytes *= tensor->shape[i];
    }
    return nbytes;
}

static void set_c_strides(struct mcpd_tensor_view *tensor)
{
    int64_t step = (int64_t)element_of(tensor->dtype);
    for (uint32_t i = tensor->ndim; i-- > 0;) {
        tensor->strides[i] = step;
        /* Of an empty tensor the steps do not matter, but must not overflow. */
        step = tensor->shape[i] <= MCPD_MAX_SLOT_NBYTES / (uint64_t)step
                   ? step * (int64_t)(tensor->shape[i] > 0 ? tensor->shape[i] : 1) : 1;
    }
}

/* Whether every element lies within the tensor's bytes, and those within the slot. */
static int check_tensor(const struct mcpd_tensor_view *tensor, uint64_t slot_nbytes)
{
    uint64_t item = element_of(tensor->dtype);
    size_t length = strnlen(tensor->name, sizeof tensor->name);
    if (item == 0 || tensor->ndim > MCPD_MAX_DIMENSIONS || length == 0 ||
        length == sizeof tensor->name || tensor->offset % MCPD_ALIGN_NBYTES != 0 ||
        tensor->offset > slot_nbytes || tensor->nbytes > slot_nbytes - tensor->offset)
        return -EINVAL;
    if (!(tensor->scale >= 0 && tensor->scale <= FLT_MAX)) /* a scale that is no number, too */
        return -EINVAL;
    /* The elements are bounded as well: with a stride of 0 a small slot could otherwise stand for a
     * tensor of any size. */
    uint64_t nbytes = elements_nbytes(tensor), reach = item;
    if (nbytes > slot_nbytes)
        return -EINVAL;
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] > slot_nbytes)
            return -EINVAL;
        if (nbytes == 0)
            continue;
        uint64_t steps = tensor->shape[i] - 1;
        if (tensor->strides[i] < 0 ||
            (steps > 0 && (uint64_t)tensor->strides[i] > (tensor->nbytes - item) / steps))
            return -EINVAL;
        reach += steps * (uint64_t)tensor->strides[i];
    }
    return nbytes > 0 && (item > tensor->nbytes || reach > tensor->nbytes) ? -EINVAL : 0;
}

/* Strides, size and place that the caller left out; `offset`: behind the tensors before. */
static int complete_tensor(struct mcpd_tensor_view *tensor, uint64_t offset)
{
    if (element_of(tensor->dtype) == 0 || tensor->ndim > MCPD_MAX_DIMENSIONS)
        return -EINVAL;
    int strided = 0;
    for (uint32_t i = 0; i < tensor->ndim; i++)
        strided |= tensor->strides[i] != 0;
    if (!strided)
        set_c_strides(tensor);
    if (tensor->nbytes == 0)
        tensor->nbytes = elements_nbytes(tensor);
    if (tensor->offset == 0)
        tensor->offset = offset;
    return tensor->nbytes <= MCPD_MAX_SLOT_NBYTES && tensor->offset <= MCPD_MAX_SLOT_NBYTES ? 0 : -EINVAL;
}

int mcpd_describe_tensors(struct mcpd_description *description, uint64_t slot_nbytes,
                          const struct mcpd_tensor_view *tensors, uint32_t ntensors)
{
    struct mcpd_tensor packed[MCPD_MAX_TENSORS] = {0};
    uint64_t offset = 0;
    if (ntensors > MCPD_MAX_TENSORS)
        return -EINVAL;
    for (uint32_t i = 0; i < ntensors; i++) {
        struct mcpd_tensor_view whole = tensors[i];
        if (complete_tensor(&whole, offset) != 0 || check_tensor(&whole, slot_nbytes) != 0)
            return -EINVAL;
        offset = mcpd_align(whole.offset + whole.nbytes);
        memcpy(packed[i].name, whole.name, strlen(whole.name));
        packed[i].dtype = (uint16_t)whole.dtype;
        packed[i].ndim = (uint8_t)whole.ndim;
        packed[i].scale = whole.scale;
        packed[i].zero_point = whole.zero_point;
        packed[i].offset = whole.offset;
        packed[i].nbytes = whole.nbytes;
        memcpy(packed[i].shape, whole.shape, whole.ndim * sizeof *whole.shape);
        memcpy(packed[i].strides, whole.strides, whole.ndim * sizeof *whole.strides);
    }
    struct mcpd_description head = {.kind = MCPD_BUNDLE, .ntensors = ntensors};
    memcpy(description, &head, offsetof(struct mcpd_description, tensors));
    memcpy(description->tensors, packed, ntensors * sizeof *packed);
    return 0;
}

int mcpd_tensor_read(const struct mcpd_description *shared, uint64_t slot_nbytes, uint32_t index,
                       struct mcpd_tensor_view *tensor)
{
    struct mcpd_tensor copy;
    memcpy(&copy, &shared->tensors[index], sizeof copy);
    memset(tensor, 0, sizeof *tensor);
    memcpy(tensor->name, copy.name, sizeof tensor->name);
    tensor->dtype = copy.dtype;
    tensor->ndim = copy.ndim;
    memcpy(tensor->shape, copy.shape, sizeof tensor->shape);
    memcpy(tensor->strides, copy.strides, sizeof tensor->strides);
    tensor->offset = copy.offset;
    tensor->nbytes = copy.nbytes;
    tensor->scale = copy.scale;
    tensor->zero_point = copy.zero_point;
    return check_tensor(tensor, slot_nbytes) == 0 ? 0 : -EBADMSG;
}

uint64_t mcpd_tensors_extent(struct mcpd_tensor_view *tensors, uint32_t ntensors)
{
    uint64_t offset = 0, extent = 0;
    for (uint32_t i = 0; i < ntensors; i++) {
        if (complete_tensor(&tensors[i], offset) != 0 ||
            check_tensor(&tensors[i], MCPD_MAX_SLOT_NBYTES) != 0)
            return MCPD_MAX_SLOT_NBYTES + 1;
        offset = mcpd_align(tensors[i].offset + tensors[i].nbytes);
        extent = tensors[i].offset + tensors[i].nbytes > extent
                     ? tensors[i].offset + tensors[i].nbytes : extent;
    }
    return extent;
}
