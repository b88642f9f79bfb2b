/* Geometry and tables of a preparation; see prepare.h. */
#include "prepare/isa.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "mcpd.h"

#define BLEND_ONE 64.0f /* rows are blended in 1/64 of a level */

/* What a pixel format looks like in memory. */
struct layout {
    uint32_t nplanes;
    uint32_t ncomponents;
    int yuv;
    uint32_t chroma_shift_x; /* log2 of luma samples per chroma sample */
    uint32_t chroma_shift_y;
    uint32_t step[2];    /* bytes between samples: of luma or RGB, of chroma */
    uint32_t plane[3];   /* of each component */
    uint32_t base[3];    /* byte of its first sample in a row */
};

static const struct layout *layout_of(uint32_t format)
{
    static const struct layout rgb24 = {1, 3, 0, 0, 0, {3, 0}, {0, 0, 0}, {0, 1, 2}};
    static const struct layout bgr24 = {1, 3, 0, 0, 0, {3, 0}, {0, 0, 0}, {2, 1, 0}};
    static const struct layout rgba = {1, 3, 0, 0, 0, {4, 0}, {0, 0, 0}, {0, 1, 2}};
    static const struct layout bgra = {1, 3, 0, 0, 0, {4, 0}, {0, 0, 0}, {2, 1, 0}};
    static const struct layout gray8 = {1, 1, 0, 0, 0, {1, 0}, {0, 0, 0}, {0, 0, 0}};
    static const struct layout nv12 = {2, 3, 1, 1, 1, {1, 2}, {0, 1, 1}, {0, 0, 1}};
    static const struct layout i420 = {3, 3, 1, 1, 1, {1, 1}, {0, 1, 2}, {0, 0, 0}};
    static const struct layout yuyv422 = {1, 3, 1, 1, 0, {2, 4}, {0, 0, 0}, {0, 1, 3}};

    switch (format) {
    case MCPD_RGB24: return &rgb24;
    case MCPD_BGR24: return &bgr24;
    case MCPD_RGBA: return &rgba;
    case MCPD_BGRA: return &bgra;
    case MCPD_GRAY8: return &gray8;
    case MCPD_NV12: return &nv12;
    case MCPD_I420: return &i420;
    case MCPD_YUYV422: return &yuyv422;
    default: return NULL;
    }
}

static int refuse(char *why, size_t nbytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, nbytes, format, args);
    va_end(args);
    return -EINVAL;
}

/* The samples of a row or column for an axis: every luma sample, or the chroma samples. */
static uint32_t subsampled(uint32_t n, uint32_t shift)
{
    return (n + (1u << shift) - 1) >> shift;
}

static int check_spec(const struct mcpd_prepare_spec *s, const struct layout *layout, char *why,
                      size_t nbytes)
{
    const uint32_t max = MCPD_PREPARE_MAX_SIDE;

    if (!layout)
        return refuse(why, nbytes, "format %u is not a pixel format that can be prepared",
                      s->format);
    if (s->width < 1 || s->width > max || s->height < 1 || s->height > max)
        return refuse(why, nbytes, "frame size %ux%u is outside 1..%u", s->width, s->height, max);
    if (s->out_width < 1 || s->out_width > max || s->out_height < 1 || s->out_height > max)
        return refuse(why, nbytes, "output size %ux%u is outside 1..%u", s->out_width,
                      s->out_height, max);
    if (s->format == MCPD_YUYV422 && s->width % 2 != 0)
        return refuse(why, nbytes, "yuyv422 needs an even width, not %u", s->width);
    if (s->nplanes != layout->nplanes)
        return refuse(why, nbytes, "%u planes given, the format has %u", s->nplanes,
                      layout->nplanes);
    if (layout->yuv && s->matrix != MCPD_BT601 && s->matrix != MCPD_BT709)
        return refuse(why, nbytes, "colour matrix %u is neither BT.601 (1) nor BT.709 (2)",
                      s->matrix);
    if (layout->yuv && s->range != MCPD_LIMITED && s->range != MCPD_FULL)
        return refuse(why, nbytes, "colour range %u is neither limited (1) nor full (2)", s->range);
    if (!isfinite(s->scale) || !isfinite(s->pad_value))
        return refuse(why, nbytes, "scale and pad_value must be finite");
    for (int c = 0; c < 3; c++) {
        if (!isfinite(s->mean[c]) || !isfinite(s->std[c]) || s->std[c] == 0.0)
            return refuse(why, nbytes, "mean and std must be finite and std not 0 (channel %d)", c);
    }
    return 0;
}

/* Bytes of a row of a plane, and its rows. */
static void plane_extent(const struct mcpd_prepare_spec *s, const struct layout *layout,
                         uint32_t plane, uint32_t *row_nbytes, uint32_t *rows)
{
    int chroma = plane > 0;

    *rows = chroma ? subsampled(s->height, layout->chroma_shift_y) : s->height;
    *row_nbytes = chroma ? subsampled(s->width, layout->chroma_shift_x) * layout->step[1]
                         : s->width * layout->step[0];
}

/* Every plane has to lie in the source buffer; finds how many bytes that takes. */
static int check_planes(const struct mcpd_prepare_spec *s, const struct layout *layout,
                        uint32_t nplanes, size_t *source_nbytes, char *why, size_t nbytes)
{
    *source_nbytes = 0;
    for (uint32_t p = 0; p < nplanes; p++) {
        uint32_t row_nbytes, rows;
        uint64_t end;

        plane_extent(s, layout, p, &row_nbytes, &rows);
        if (s->plane_stride[p] < row_nbytes)
            return refuse(why, nbytes, "plane %u has stride %llu, its rows have %u bytes", p,
                          (unsigned long long)s->plane_stride[p], row_nbytes);
        if (__builtin_mul_overflow(s->plane_stride[p], (uint64_t)(rows - 1), &end) ||
            __builtin_add_overflow(end, (uint64_t)row_nbytes, &end) ||
            __builtin_add_overflow(end, s->plane_offset[p], &end) || end > (uint64_t)PTRDIFF_MAX)
            return refuse(why, nbytes, "plane %u (offset %llu, stride %llu) is beyond any buffer",
                          p, (unsigned long long)s->plane_offset[p],
                          (unsigned long long)s->plane_stride[p]);
        if (end > *source_nbytes)
            *source_nbytes = (size_t)end;
    }
    return 0;
}

/* Which rectangle of the output shows the source, and how output maps to source. */
static void place(const struct mcpd_prepare_spec *s, struct mcpd_prepare_plan *plan)
{
    double fit_x = (double)s->out_width / s->width, fit_y = (double)s->out_height / s->height;
    double *t = plan->transform;

    plan->columns_used = s->out_width;
    plan->rows_used = s->out_height;
    t[0] = 1.0 / fit_x;
    t[2] = 1.0 / fit_y;
    if (s->resize == MCPD_LETTERBOX) {
        double fit = fit_x < fit_y ? fit_x : fit_y;

        plan->columns_used = (uint32_t)fmin(fmax(round(s->width * fit), 1.0), s->out_width);
        plan->rows_used = (uint32_t)fmin(fmax(round(s->height * fit), 1.0), s->out_height);
        plan->left = (s->out_width - plan->columns_used) / 2;
        plan->top = (s->out_height - plan->rows_used) / 2;
        t[0] = (double)s->width / plan->columns_used;
        t[2] = (double)s->height / plan->rows_used;
        t[1] = -t[0] * plan->left;
        t[3] = -t[2] * plan->top;
    } else if (s->resize == MCPD_CROP) {
        t[0] = t[2] = 1.0 / (fit_x > fit_y ? fit_x : fit_y);
        t[1] = (s->width - s->out_width * t[0]) / 2.0;
        t[3] = (s->height - s->out_height * t[2]) / 2.0;
    }
}

/*
 * Where output pixel i of an axis is sampled: the index of the sample at or before it, and the
 * weight of the next. `site` is the position of sample 0 in units of luma pixels, from pixel 0's.
 */
static uint32_t sample_at(const struct mcpd_prepare_spec *s, double ratio, double shift, uint32_t i,
                          uint32_t count, uint32_t subsampling, double site, double *weight)
{
    double at = s->sampling == MCPD_CORNER ? i * ratio + shift : (i + 0.5) * ratio + shift - 0.5;
    double index;

    at = (at - site) / (1u << subsampling);
    at = fmin(fmax(at, 0.0), (double)(count - 1));
    index = floor(at);
    if (index > 0 && index >= count - 1) /* so that there is a next sample always */
        index = (double)count - 2;
    *weight = at - index;
    return (uint32_t)index;
}

static int fill_columns(const struct mcpd_prepare_spec *s, const struct layout *layout,
                        struct mcpd_prepare_plan *plan, uint32_t axis)
{
    struct mcpd_prepare_columns *columns = &plan->columns[axis];
    uint32_t shift = axis ? layout->chroma_shift_x : 0;
    uint32_t count = subsampled(s->width, shift), n = plan->columns_used;
    uint32_t padded = (uint32_t)MCPD_PREPARE_PADDED(n);

    columns->left = malloc(padded * sizeof(*columns->left));
    columns->weight = malloc(padded * sizeof(*columns->weight));
    if (!columns->left || !columns->weight)
        return -ENOMEM;
    columns->step = count > 1 ? layout->step[axis] : 0;
    for (uint32_t i = 0; i < n; i++) {
        double weight;
        uint32_t index = sample_at(s, plan->transform[0], plan->transform[1], i + plan->left, count,
                                   shift, 0.0, &weight);

        columns->left[i] = (int32_t)(index * layout->step[axis]);
        columns->weight[i] = (float)weight;
        if (i == 0)
            columns->first = index;
        columns->last = index + (count > 1);
    }
    for (uint32_t i = n; i < padded; i++) {
        columns->left[i] = columns->left[n - 1];
        columns->weight[i] = columns->weight[n - 1];
    }
    return 0;
}

static int fill_rows(const struct mcpd_prepare_spec *s, const struct layout *layout,
                     struct mcpd_prepare_plan *plan, uint32_t axis)
{
    struct mcpd_prepare_rows *rows = &plan->rows[axis];
    uint32_t shift = axis ? layout->chroma_shift_y : 0;
    uint32_t count = subsampled(s->height, shift), n = plan->rows_used;

    rows->upper = malloc(n * sizeof(*rows->upper));
    rows->lower = malloc(n * sizeof(*rows->lower));
    rows->weight = malloc(n * sizeof(*rows->weight));
    if (!rows->upper || !rows->lower || !rows->weight)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        double weight;
        uint32_t index = sample_at(s, plan->transform[2], plan->transform[3], i + plan->top, count,
                                   shift, shift ? 0.5 : 0.0, &weight);

        rows->weight[i] = (int16_t)fmin(round(weight * 32768.0), 32767.0);
        rows->upper[i] = index;
        rows->lower[i] = index + (count > 1 && rows->weight[i] != 0);
    }
    return 0;
}

/* Components to pixel: ITU-R BT.601 and BT.709, with the ranges of 8-bit video. */
static void fill_mix(const struct mcpd_prepare_spec *s, const struct layout *layout,
                     struct mcpd_prepare_plan *plan)
{
    double kr = s->matrix == MCPD_BT601 ? 0.299 : 0.2126;
    double kb = s->matrix == MCPD_BT601 ? 0.114 : 0.0722;
    double kg = 1.0 - kr - kb;
    double mix[3][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}, offset[3] = {0, 0, 0};

    if (layout->yuv) {
        int limited = s->range == MCPD_LIMITED;
        double y = limited ? 255.0 / 219.0 : 1.0, c = limited ? 255.0 / 224.0 : 1.0;
        double rv = 2.0 * (1.0 - kr) * c, bu = 2.0 * (1.0 - kb) * c;
        double gu = -bu * kb / kg, gv = -rv * kr / kg;
        double rows[3][3] = {{y, 0, rv}, {y, gu, gv}, {y, bu, 0}};

        for (int ch = 0; ch < 3; ch++) {
            offset[ch] = (limited ? -16.0 * y : 0.0) - 128.0 * (rows[ch][1] + rows[ch][2]);
            for (int k = 0; k < 3; k++)
                mix[ch][k] = rows[ch][k];
        }
    } else if (layout->ncomponents == 1) {
        mix[1][0] = mix[2][0] = 1;
    }
    if (s->channels == MCPD_OUT_GRAY) {
        if (layout->yuv) { /* luma alone: no chroma is read */
            offset[0] = s->range == MCPD_LIMITED ? -16.0 * mix[0][0] : 0.0;
        } else if (layout->ncomponents == 3) {
            mix[0][0] = kr;
            mix[0][1] = kg;
            mix[0][2] = kb;
        }
    }
    for (uint32_t ch = 0; ch < plan->nchannels; ch++) {
        uint32_t from = s->channels == MCPD_OUT_BGR ? 2 - ch : ch;
        struct mcpd_prepare_mix *to = &plan->mix[ch];
        float padding = (float)((s->pad_value * s->scale - s->mean[ch]) / s->std[ch]), scratch;

        for (uint32_t k = 0; k < plan->ncomponents; k++) {
            if (mix[from][k] != 0.0) {
                to->component[to->nterms] = k;
                to->factor[to->nterms++] = (float)(mix[from][k] / BLEND_ONE);
            }
        }
        to->offset = (float)offset[from];
        to->gain = (float)(s->scale / s->std[ch]);
        to->bias = (float)(-s->mean[ch] / s->std[ch]);
        mcpd_prepare_convert(plan->dtype, &padding, 1, &scratch, plan->padding[ch]);
    }
}

/* Which bytes of which planes are read, and which component lies where in them. */
static void fill_planes(const struct mcpd_prepare_spec *s, const struct layout *layout,
                        struct mcpd_prepare_plan *plan)
{
    for (uint32_t p = 0; p < plan->nplanes; p++) {
        struct mcpd_prepare_plane *plane = &plan->planes[p];
        uint32_t axis = p > 0, group, step = layout->step[axis];
        const struct mcpd_prepare_columns *columns = &plan->columns[axis];
        uint32_t first = columns->first * step, end = (columns->last + 1) * step, rows;

        if (p == 0 && plan->ncomponents == 3 && layout->nplanes == 1 && layout->yuv) {
            group = layout->step[1]; /* chroma lies between the luma */
            if (plan->columns[1].first * group < first)
                first = plan->columns[1].first * group;
            if ((plan->columns[1].last + 1) * group > end)
                end = (plan->columns[1].last + 1) * group;
        }
        plane->offset = s->plane_offset[p];
        plane->stride = s->plane_stride[p];
        plane->axis = axis;
        plane->first = first;
        plane->nbytes = end - first;
        plane_extent(s, layout, p, &plane->row_nbytes, &rows);
    }
    for (uint32_t k = 0; k < plan->ncomponents; k++) {
        plan->components[k].plane = layout->plane[k];
        plan->components[k].axis = layout->yuv && k > 0;
        plan->components[k].base = layout->base[k];
    }
}

int mcpd_prepare_plan_create(const struct mcpd_prepare_spec *spec, struct mcpd_prepare_plan **out,
                             char *why, size_t nbytes)
{
    static const size_t value_nbytes[] = {
        [MCPD_OUT_FLOAT32] = 4, [MCPD_OUT_FLOAT16] = 2, [MCPD_OUT_UINT8] = 1};
    const struct layout *layout = layout_of(spec->format);
    struct mcpd_prepare_plan *plan;
    int luma_only, failed = check_spec(spec, layout, why, nbytes);

    if (failed)
        return failed;
    plan = calloc(1, sizeof(*plan));
    if (!plan)
        return -ENOMEM;
    luma_only = layout->yuv && spec->channels == MCPD_OUT_GRAY;
    plan->nchannels = spec->channels == MCPD_OUT_GRAY ? 1 : 3;
    plan->ncomponents = luma_only ? 1 : layout->ncomponents;
    plan->nplanes = luma_only ? 1 : layout->nplanes;
    plan->out_width = spec->out_width;
    plan->out_height = spec->out_height;
    plan->layout = spec->layout;
    plan->dtype = spec->dtype;
    plan->value_nbytes = value_nbytes[spec->dtype];
    plan->image_nbytes =
        (size_t)spec->out_width * spec->out_height * plan->nchannels * plan->value_nbytes;
    failed = check_planes(spec, layout, layout->nplanes, &plan->source_nbytes, why, nbytes);
    if (!failed) {
        place(spec, plan);
        for (uint32_t axis = 0; !failed && axis < (plan->ncomponents == 3 && layout->yuv ? 2u : 1u);
             axis++) {
            failed = fill_columns(spec, layout, plan, axis);
            if (!failed)
                failed = fill_rows(spec, layout, plan, axis);
        }
    }
    if (!failed) {
        fill_mix(spec, layout, plan);
        fill_planes(spec, layout, plan);
        failed = mcpd_prepare_isa_choose(plan, why, nbytes);
    }
    if (failed) {
        mcpd_prepare_plan_free(plan);
        return failed;
    }
    *out = plan;
    return 0;
}

void mcpd_prepare_plan_free(struct mcpd_prepare_plan *plan)
{
    if (!plan)
        return;
    for (int axis = 0; axis < 2; axis++) {
        free(plan->columns[axis].left);
        free(plan->columns[axis].weight);
        free(plan->rows[axis].upper);
        free(plan->rows[axis].lower);
        free(plan->rows[axis].weight);
    }
    free(plan->tables);
    free(plan->spare);
    free(plan);
}
