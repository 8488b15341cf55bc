import torch


def interp(pix_to_face, barycentric_coords, face_attrs, pix_attrs):
    """As interpolate_face_attributes_python."""
    vals = (barycentric_coords[:, :, None] * face_attrs[pix_to_face.clamp(min=0)]).sum(1)
    pix_attrs.copy_(vals.masked_fill((pix_to_face < 0)[:, None], 0.0))


def reference(pix_to_face, barycentric_coords, face_attrs, face_attrs_2, pix_to_face_0):
    pix_attrs = torch.empty(
        (
            pix_to_face_0,
            face_attrs_2,
        ),
        dtype=barycentric_coords.dtype,
        device=pix_to_face.device,
    )
    interp(pix_to_face, barycentric_coords, face_attrs, pix_attrs)
    return {"pix_attrs": pix_attrs}
